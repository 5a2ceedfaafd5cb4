"""A schema may only grow: every version reads every other."""

from __future__ import annotations

import copy
import io
import itertools
import json
from typing import Any

import fastavro
import pytest

from streams.contract.compatibility import breaks
from streams.contract.schemas import all_schemas, latest
from streams.contract.topics import ALL


def grown(change: Any) -> str:
    """nic-counters with one change made to it."""
    schema = json.loads(latest("nic-counters").text)
    change(schema)
    return json.dumps(schema)


def field(schema: dict[str, Any], name: str) -> dict[str, Any]:
    return next(f for f in schema["fields"] if f["name"] == name)


@pytest.mark.parametrize("topic", [topic.name for topic in ALL])
def test_every_packaged_version_may_follow_the_one_before(topic: str) -> None:
    versions = [schema for schema in all_schemas() if schema.topic == topic]
    assert versions, topic
    for older, newer in itertools.pairwise(versions):
        assert breaks(older.text, newer.text) == []


def test_adding_a_field_with_a_default_breaks_nobody() -> None:
    new = grown(lambda s: s["fields"].append({"name": "rack", "type": ["null", "string"], "default": None}))
    assert breaks(latest("nic-counters").text, new) == []


def test_adding_a_symbol_to_an_enum_with_a_default_breaks_nobody() -> None:
    new = grown(lambda s: field(s, "source")["type"]["symbols"].append("switch"))
    assert breaks(latest("nic-counters").text, new) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda s: s["fields"].append({"name": "rack", "type": "string"}),
            "NicCounters.rack: is new and has no default",
        ),
        (lambda s: s["fields"].remove(field(s, "seq")), "NicCounters.seq: would be gone"),
        (lambda s: field(s, "seq").update(name="number"), "NicCounters.seq: would be gone"),
        (lambda s: field(s, "seq").update(type="int"), "NicCounters.seq: was long, would be int"),
        (lambda s: field(s, "seq").update(type=["null", "long"]), "NicCounters.seq: was long, would be union"),
        (lambda s: field(s, "ports").pop("default"), "NicCounters.ports: would lose its default"),
        (
            lambda s: field(s, "source")["type"]["symbols"].remove("kernel"),
            "NicCounters.source: symbol kernel would be gone",
        ),
        (lambda s: field(s, "source")["type"].pop("default"), "NicCounters.source: an enum needs a default"),
        (
            lambda s: field(s, "ports")["type"]["items"]["fields"].append({"name": "lane", "type": "long"}),
            "NicCounters.ports[].lane: is new and has no default",
        ),
        (
            lambda s: field(s, "counters")["type"]["fields"].pop(0),
            "NicCounters.counters.moving_ids: would be gone",
        ),
        (lambda s: s.update(namespace="other"), "would become other: registries call that another type"),
        (lambda s: s.update(name="Counters"), "type NicCounters would be called Counters"),
        (lambda s: field(s, "about")["type"].append("string"), "the union would have 3 branches instead of 2"),
    ],
)
def test_a_breaking_change_is_named(change: Any, says: str) -> None:
    found = breaks(latest("nic-counters").text, grown(change))
    assert any(says in reason for reason in found), found


def test_an_old_message_is_read_by_a_grown_schema_and_a_new_one_by_the_old() -> None:
    old = json.loads(latest("pipeline-health").text)
    new = copy.deepcopy(old)
    new["fields"].append({"name": "rack", "type": ["null", "string"], "default": None})
    field(new, "status")["type"]["symbols"].append("asleep")
    assert breaks(json.dumps(old), json.dumps(new)) == []

    def carried(writer: Any, reader: Any, record: dict[str, Any]) -> Any:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(writer), record)
        out.seek(0)
        return fastavro.schemaless_reader(out, fastavro.parse_schema(writer), fastavro.parse_schema(reader))

    base = {"cluster": "c", "component": "agent", "instance": "i", "epoch": "e", "us": 1}
    assert carried(old, new, base)["rack"] is None
    forward = carried(new, old, {**base, "rack": "r1", "status": "asleep"})
    assert forward["status"] == "unknown"
    assert "rack" not in forward
