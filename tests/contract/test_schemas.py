"""The Avro files mirror the structs, their ids never collide, and what was written once decodes for ever."""

from __future__ import annotations

import json
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streams.contract.schemas import PACKAGED_BIT, all_schemas, by_packaged_id, latest, missing_topics
from streams.contract.topics import ALL, BY_NAME
from streams.contract.wire import Decoder, Encoder
from tests.contract.examples import EXAMPLES, FOLDER, plain

TOPICS = [pytest.param(topic, id=topic.name) for topic in ALL]


def as_avro(annotation: Any) -> Any:
    """The Avro shape of a field's type, named types in full."""
    simple = {int: "long", str: "string", bytes: "bytes", bool: "boolean"}
    if annotation in simple:
        return simple[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list:
        return ["array", as_avro(arguments[0])]
    if origin is dict:
        assert arguments[0] is str
        return ["map", as_avro(arguments[1])]
    if origin in {typing.Union, types.UnionType}:
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return ["union", "null", as_avro(inner)]
    if issubclass(annotation, Enum):
        return ["enum", [member.value for member in annotation]]
    return ["record", fields_of(annotation)]


def fields_of(record: type[msgspec.Struct]) -> list[Any]:
    """(name, type, default or nothing) of every field, in order."""
    hints = typing.get_type_hints(record)
    return [[f.name, as_avro(hints[f.name]), *default_of(f)] for f in msgspec.structs.fields(record)]


def default_of(field: msgspec.structs.FieldInfo) -> list[Any]:
    if field.default is not msgspec.NODEFAULT:
        return [in_json(field.default)]
    return [in_json(field.default_factory())] if field.default_factory is not msgspec.NODEFAULT else []


def in_json(value: Any) -> Any:
    """A default as an .avsc file writes it: bytes as the characters of their code points."""
    if isinstance(value, msgspec.Struct):
        return {name: in_json(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value.value if isinstance(value, Enum) else value


def shape(node: Any, named: dict[str, Any]) -> Any:
    """An .avsc node in the form of `as_avro`."""
    if isinstance(node, str):
        return shape(named[node], named) if node in named else node
    if isinstance(node, list):
        return ["union", *(shape(branch, named) for branch in node)]
    kind = node["type"]
    if kind in {"array", "map"}:
        return [kind, shape(node["items" if kind == "array" else "values"], named)]
    named[node["name"]] = node
    if kind == "enum":
        return ["enum", node["symbols"]]
    return [
        "record",
        [[f["name"], shape(f["type"], named), *([f["default"]] if "default" in f else [])] for f in node["fields"]],
    ]


def enums(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, list):
        return [found for branch in node for found in enums(branch)]
    if not isinstance(node, dict):
        return []
    children = [node.get("items"), node.get("values"), *(f["type"] for f in node.get("fields", []))]
    return ([node] if node["type"] == "enum" else []) + [found for child in children for found in enums(child)]


def test_every_topic_has_a_schema() -> None:
    assert missing_topics() == set()
    assert {schema.topic for schema in all_schemas()} == set(BY_NAME)


@pytest.mark.parametrize("topic", TOPICS)
def test_fields_types_and_defaults_are_those_of_the_struct(topic: Any) -> None:
    assert shape(json.loads(latest(topic.name).text), {}) == ["record", fields_of(topic.record)]


@pytest.mark.parametrize("topic", TOPICS)
def test_every_enum_has_unknown_first_and_as_its_default(topic: Any) -> None:
    for enum in enums(json.loads(latest(topic.name).text)):
        assert enum["default"] == "unknown" == enum["symbols"][0], enum["name"]


@pytest.mark.parametrize("topic", TOPICS)
def test_all_versions_of_a_topic_share_one_namespace(topic: Any) -> None:
    """A registry calls another namespace another type; a breaking change is another topic anyway."""
    found = {json.loads(schema.text)["namespace"] for schema in all_schemas() if schema.topic == topic.name}
    assert found == {f"fabric_sentinel.{topic.name.replace('-', '_')}.v1"}


def test_packaged_ids_never_collide_and_cannot_be_a_registrys() -> None:
    ids = [schema.packaged_id for schema in all_schemas()]
    assert len(set(ids)) == len(ids) == len(by_packaged_id())
    assert all(packaged & PACKAGED_BIT and packaged < 2**31 for packaged in ids)


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_has_an_example_of_its_newest_version(topic: Any) -> None:
    assert list(FOLDER.glob(f"{topic.name}.v{latest(topic.name).version}.*.bin"))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.bin")), ids=lambda path: path.stem)
def test_what_was_written_once_decodes_to_the_same_content_for_ever(path: Path) -> None:
    topic = path.name.split(".v")[0]
    expected = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))

    content = plain(Decoder(BY_NAME[topic])(path.read_bytes()))

    assert isinstance(content, dict)
    # Fields added since then are there with their defaults; everything written then is unchanged.
    assert {name: content[name] for name in expected} == expected


@pytest.mark.parametrize("key", EXAMPLES, ids=".".join)
def test_examples_of_the_newest_version_are_what_the_encoder_writes_today(key: tuple[str, str]) -> None:
    topic, name = key
    path = FOLDER / f"{topic}.v{latest(topic).version}.{name}.bin"
    assert Encoder(BY_NAME[topic])(EXAMPLES[key]) == path.read_bytes()
    assert Decoder(BY_NAME[topic])(path.read_bytes()) == EXAMPLES[key]


def test_examples_say_something_in_every_field() -> None:
    """An example that leaves fields at their defaults would not notice them go."""
    silent_by_nature = {"watcher_clock", "progress", "merged_into", "link_port"}
    for topic in ALL:
        said: set[str] = set()
        for (name, _), record in EXAMPLES.items():
            if name == topic.name:
                said |= {
                    f.name
                    for f in msgspec.structs.fields(type(record))
                    if f.required or getattr(record, f.name) not in (f.default, None, False, 0)
                }
        assert set(topic.record.__struct_fields__) - said <= silent_by_nature | {"nic_silent", "lost_events"}, (
            topic.name
        )
