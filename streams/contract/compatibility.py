"""Says what a newer schema would break: for readers of old messages, and for old readers of new ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

Node = object
Named = dict[str, Mapping[str, object]]


def breaks(older: str, newer: str) -> list[str]:
    """Why `newer` (both are .avsc texts) may not follow `older` on the same topic; empty where it may.

    Our rule is narrower than Avro's: fields and enum symbols are only ever added, fields with a default, enums keep
    one, and nothing changes its type or name. So every version reads every other, forwards and backwards.
    """
    old, new = json.loads(older), json.loads(newer)
    if old.get("namespace") != new.get("namespace"):
        return [
            f"namespace {old.get('namespace')} would become {new.get('namespace')}: registries call that another type"
        ]
    return list(_compare(old, new, _named(old), _named(new), _name(old, ""), frozenset()))


def _compare(old: Node, new: Node, olds: Named, news: Named, where: str, seen: frozenset[str]) -> Iterator[str]:
    old, new = _resolve(old, olds), _resolve(new, news)
    if isinstance(old, list) and isinstance(new, list):
        yield from _unions(old, new, olds, news, where, seen)
        return
    if _kind(old) != _kind(new):
        yield f"{where}: was {_kind(old)}, would be {_kind(new)}"
        return
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return
    if _kind(old) in {"record", "enum"} and old["name"] != new["name"]:
        yield f"{where}: type {old['name']} would be called {new['name']}"
    if _kind(old) == "record" and str(old["name"]) not in seen:
        yield from _records(old, new, olds, news, where, seen | {str(old["name"])})
    elif _kind(old) == "enum":
        yield from _enums(old, new, where)
    elif _kind(old) in {"array", "map"}:
        inner = "items" if _kind(old) == "array" else "values"
        yield from _compare(old[inner], new[inner], olds, news, f"{where}[]", seen)


def _records(
    old: Mapping[str, object], new: Mapping[str, object], olds: Named, news: Named, where: str, seen: frozenset[str]
) -> Iterator[str]:
    before, after = _fields(old), _fields(new)
    for name, field in before.items():
        if name not in after:
            yield f"{where}.{name}: would be gone"
            continue
        if "default" in field and "default" not in after[name]:
            yield f"{where}.{name}: would lose its default"
        yield from _compare(field["type"], after[name]["type"], olds, news, f"{where}.{name}", seen)
    for name in after.keys() - before.keys():
        if "default" not in after[name]:
            yield f"{where}.{name}: is new and has no default"


def _enums(old: Mapping[str, object], new: Mapping[str, object], where: str) -> Iterator[str]:
    before, after = old["symbols"], new["symbols"]
    if not isinstance(before, list) or not isinstance(after, list):
        return
    for symbol in before:
        if symbol not in after:
            yield f"{where}: symbol {symbol} would be gone"
    if "default" not in new:
        yield f"{where}: an enum needs a default for symbols that a reader does not know"


def _unions(
    old: list[object], new: list[object], olds: Named, news: Named, where: str, seen: frozenset[str]
) -> Iterator[str]:
    if len(old) != len(new):
        yield f"{where}: the union would have {len(new)} branches instead of {len(old)}"
        return
    for before, after in zip(old, new, strict=True):
        yield from _compare(before, after, olds, news, where, seen)


def _fields(record: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    fields = record["fields"]
    return {str(field["name"]): field for field in fields} if isinstance(fields, list) else {}


def _kind(node: Node) -> str:
    if isinstance(node, list):
        return "union"
    return str(node["type"]) if isinstance(node, Mapping) else str(node)


def _name(node: Node, default: str) -> str:
    return str(node.get("name", default)) if isinstance(node, Mapping) else default


def _resolve(node: Node, named: Named) -> Node:
    return named.get(node, node) if isinstance(node, str) else node


def _named(node: Node) -> Named:
    """Every record and enum that a schema defines, by its short name."""
    if isinstance(node, list):
        return {name: found for branch in node for name, found in _named(branch).items()}
    if not isinstance(node, Mapping):
        return {}
    inner: list[object] = [node.get("items"), node.get("values")]
    inner += [field["type"] for field in _fields(node).values()] if "fields" in node else []
    found = {name: definition for child in inner for name, definition in _named(child).items()}
    return {**found, _name(node, ""): node} if node.get("type") in {"record", "enum"} else found
