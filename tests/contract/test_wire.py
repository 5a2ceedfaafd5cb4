"""Known traps of Avro on Kafka end as errors with a reason, never as wrong numbers."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import fastavro
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streams.contract.calls import COLUMNS, pack_rows, unpack_rows
from streams.contract.errors import InvalidRecordError
from streams.contract.inputs import NicCounters
from streams.contract.schemas import PACKAGED_BIT, latest
from streams.contract.series import MISSING, Series, pack, pack_pairs, unpack, unpack_pairs
from streams.contract.topics import BY_NAME, EPISODES, NIC_COUNTERS, NODE_PODS, PIPELINE_HEALTH
from streams.contract.wire import FINGERPRINT_HEADER, MAGIC, Decoder, Encoder
from tests.contract.examples import EXAMPLES, HEALTH, NIC, PODS
from tests.paths import shared

ENCODE, DECODE = Encoder(NIC_COUNTERS), Decoder(NIC_COUNTERS)


def corpus_case(case: str) -> dict[str, Any]:
    cases = json.loads(shared("corpus", "kafka_clickhouse", "avro_cases.json").read_text())
    (found,) = [entry for entry in cases if entry["id"] == case]
    return dict(found)


class OneSchema:
    """A registry that knows one id."""

    def __init__(self, schema_id: int, schema: dict[str, Any]) -> None:
        self._known = {schema_id: schema}

    def schema_of(self, schema_id: int) -> dict[str, object]:
        if schema_id not in self._known:
            raise InvalidRecordError(f"the registry has no schema {schema_id}")
        return self._known[schema_id]


@pytest.mark.parametrize("key", EXAMPLES, ids=".".join)
def test_a_record_comes_back_as_it_was_written(key: tuple[str, str]) -> None:
    topic = BY_NAME[key[0]]
    assert Decoder(topic)(Encoder(topic)(EXAMPLES[key])) == EXAMPLES[key]


def test_a_message_begins_with_magic_and_packaged_id_and_carries_the_fingerprint() -> None:
    value = ENCODE(NIC)
    schema = latest("nic-counters")
    assert (value[0], int.from_bytes(value[1:5], "big")) == (MAGIC, schema.packaged_id)
    assert ENCODE.headers == {FINGERPRINT_HEADER: schema.fingerprint.hex().encode()}
    assert int(ENCODE.headers[FINGERPRINT_HEADER], 16) & (PACKAGED_BIT - 1) == schema.packaged_id & (PACKAGED_BIT - 1)


def test_bytes_without_the_prefix_are_refused_not_read_as_zeros() -> None:
    body = ENCODE(NIC)[5:]
    with pytest.raises(InvalidRecordError, match="no Confluent prefix"):
        DECODE(body)


def test_framed_bytes_read_raw_would_be_zeros_and_our_reader_refuses_them() -> None:
    case = corpus_case("confluent-framed")
    framed = bytes.fromhex(case["bytes_hex"])
    with pytest.raises(InvalidRecordError, match="schema id 7 is not a packaged one"):
        DECODE(framed)


@pytest.mark.parametrize("value", [b"", b"\x00", b"\x00\x00\x00\x00", None])
def test_a_message_too_short_for_a_prefix_is_refused(value: bytes | None) -> None:
    with pytest.raises(InvalidRecordError):
        DECODE(value)


def test_trailing_bytes_are_refused() -> None:
    junk = bytes.fromhex(corpus_case("trailing")["bytes_hex"])[-2:]
    with pytest.raises(InvalidRecordError, match="2 bytes are left over"):
        DECODE(ENCODE(NIC) + junk)


def test_truncation_at_any_byte_is_refused() -> None:
    value = ENCODE(NIC)
    for length in range(len(value)):
        with pytest.raises(InvalidRecordError):
            DECODE(value[:length])


def test_a_counter_beyond_a_long_is_refused_by_the_writer_with_a_reason() -> None:
    assert corpus_case("u64max")["expected"].startswith("OverflowError")
    for absurd in (2**63, 2**64 - 1, -(2**63) - 1):
        with pytest.raises(InvalidRecordError, match="cannot be written as NicCounters"):
            ENCODE(msgspec.structs.replace(NIC, lost_events=absurd))


def test_the_largest_long_goes_through() -> None:
    record = msgspec.structs.replace(HEALTH, counts={"n": 2**63 - 1, "m": -(2**63)})
    assert Decoder(PIPELINE_HEALTH)(Encoder(PIPELINE_HEALTH)(record)) == record


def test_a_float_in_an_integer_field_is_refused_not_truncated() -> None:
    assert corpus_case("float-in-long")["expected"] == "silently truncated to 1"
    with pytest.raises(InvalidRecordError, match="seq"):
        ENCODE(msgspec.structs.replace(NIC, seq=1.5))  # type: ignore[arg-type]


def test_a_boolean_in_an_integer_field_is_refused() -> None:
    assert corpus_case("bool-in-long")["expected"] == "1"
    with pytest.raises(InvalidRecordError, match="seq"):
        ENCODE(msgspec.structs.replace(NIC, seq=True))


def test_a_missing_field_is_refused_by_the_writer() -> None:
    with pytest.raises(InvalidRecordError):
        ENCODE(msgspec.structs.replace(NIC, node=None))  # type: ignore[arg-type]


def test_another_topics_message_is_refused() -> None:
    value = Encoder(NODE_PODS)(PODS)
    with pytest.raises(InvalidRecordError, match="no packaged schema of nic-counters"):
        DECODE(value)


def test_an_older_writer_is_read_through_its_own_schema_and_new_fields_get_defaults() -> None:
    older = json.loads(latest("pipeline-health").text)
    older["fields"] = [field for field in older["fields"] if field["name"] not in {"counts", "gaps"}]
    body = io.BytesIO()
    fields = {"cluster": "c", "component": "agent", "instance": "i", "epoch": "e", "us": 5, "status": "ok"}
    fastavro.schemaless_writer(body, fastavro.parse_schema(older), fields)
    value = b"\x00" + (17).to_bytes(4, "big") + body.getvalue()

    read = Decoder(PIPELINE_HEALTH, registry=OneSchema(17, fastavro.parse_schema(older)))(value)  # type: ignore[arg-type]

    assert read == msgspec.convert(fields, PIPELINE_HEALTH.record)


def test_the_corpus_first_case_reads_old_bytes_with_both_schemas() -> None:
    case = corpus_case("writer+reader")
    writer = case["writer"]
    reader = {**writer, "fields": [*writer["fields"], {"name": "prio", "type": ["null", "int"], "default": None}]}
    read = fastavro.schemaless_reader(
        io.BytesIO(bytes.fromhex(case["bytes_hex"])), fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    )
    assert read == case["expected"]


def test_packaged_and_registry_ids_decode_on_one_topic() -> None:
    decode = Decoder(NIC_COUNTERS, registry=OneSchema(3, latest("nic-counters").parsed))  # type: ignore[arg-type]
    assert decode(Encoder(NIC_COUNTERS, registered_id=3)(NIC)) == NIC
    assert decode(ENCODE(NIC)) == NIC


def test_an_unknown_packaged_id_is_refused() -> None:
    value = ENCODE(NIC)
    with pytest.raises(InvalidRecordError, match="is no packaged schema"):
        DECODE(value[:1] + (PACKAGED_BIT | 5).to_bytes(4, "big") + value[5:])


def test_an_enum_symbol_from_the_future_becomes_unknown() -> None:
    newer = json.loads(latest("episodes").text)
    verdict = next(field for field in newer["fields"] if field["name"] == "verdict")
    verdict["type"]["symbols"].append("haunted")
    fields = msgspec.to_builtins(EXAMPLES["episodes", "confirmed"], builtin_types=(bytes,)) | {"verdict": "haunted"}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(newer), fields)

    parsed: Any = fastavro.parse_schema(newer)
    read = Decoder(EPISODES, registry=OneSchema(9, parsed))(b"\x00\x00\x00\x00\x09" + body.getvalue())

    assert read == msgspec.structs.replace(EXAMPLES["episodes", "confirmed"], verdict="unknown")


@given(st.binary(max_size=300))
def test_any_bytes_at_all_are_a_record_or_refused(body: bytes) -> None:
    prefix = ENCODE(NIC)[:5]
    for value in (body, prefix + body):
        with contextlib.suppress(InvalidRecordError):
            assert isinstance(DECODE(value), NicCounters)


INT64 = st.integers(-(2**63), 2**63 - 1)


@given(
    st.integers(1, 12).flatmap(
        lambda ticks: hnp.arrays(
            np.int64,
            st.tuples(st.integers(0, 20), st.just(ticks)),
            elements=st.one_of(st.just(0), st.just(MISSING), INT64),
        )
    ),
    st.randoms(use_true_random=False),
)
def test_series_come_back_with_every_value_and_absent_rows_stay_absent(values: Any, rng: Any) -> None:
    pairs = [(i, rng.randrange(65_536)) for i in range(len(values))]
    given_series = Series(
        entity=np.array([p[0] for p in pairs], np.int32), name=np.array([p[1] for p in pairs], np.int32), values=values
    )

    packed = pack(given_series)
    back = unpack(packed, ticks=values.shape[1], entities=max(1, len(values)), names=65_536)

    def as_dict(series: Series) -> dict[tuple[int, int], list[int]]:
        return {
            (int(e), int(n)): row for e, n, row in zip(series.entity, series.name, series.values.tolist(), strict=True)
        }

    expected = {key: row for key, row in as_dict(given_series).items() if set(row) != {MISSING}}
    assert as_dict(back) == expected


def test_a_counter_that_stood_still_costs_one_value_and_a_moving_one_all_of_them() -> None:
    still_and_moving = np.array([[7] * 5, [1, 2, 3, 4, 5]], np.int64)
    packed = pack(Series(entity=np.array([0, 0], np.int32), name=np.array([0, 1], np.int32), values=still_and_moving))
    assert [len(part) for part in (packed.steady_ids, packed.steady_values)] == [4, 8]
    assert [len(part) for part in (packed.moving_ids, packed.moving_values)] == [4, 40]


@given(st.integers(1, 9), hnp.arrays(np.int64, st.tuples(st.integers(0, 30), st.just(COLUMNS)), elements=INT64))
def test_rows_of_calls_come_back(ticks: int, rows: Any) -> None:
    rows[:, 0] %= ticks
    rows[:, 1] %= 4
    back = unpack_rows(pack_rows(rows), communicators=4, ticks=ticks)
    assert (back == rows).all()


@given(st.lists(st.tuples(st.integers(0, 65_535), st.integers(0, 65_535)), max_size=50))
def test_pairs_come_back(pairs: list[tuple[int, int]]) -> None:
    high, low = unpack_pairs(pack_pairs([p[0] for p in pairs], [p[1] for p in pairs]))
    assert list(zip(high.tolist(), low.tolist(), strict=True)) == pairs


def test_a_record_without_ticks_has_no_rows() -> None:
    clock = EXAMPLES["nic-counters", "clock"]
    assert isinstance(clock, NicCounters)
    assert len(unpack(clock.counters, ticks=0, entities=0, names=0).values) == 0
