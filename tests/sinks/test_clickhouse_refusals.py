"""What the store refuses, and what it must never choke on."""

import json
import random
from collections.abc import Sequence

import msgspec
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from sinks.clickhouse.query import read_incidents
from sinks.clickhouse.sink import TOPICS, ClickHouseSink
from sinks.clickhouse.store import Store, StoreError, explain, is_retryable
from streams.contract.errors import InvalidRecordError, RetryableError
from streams.contract.topics import (
    DEAD_LETTERS,
    EPISODES,
    INCIDENTS,
    JOB_STATES,
    NCCL_THROUGHPUT,
    NIC_COUNTERS,
    NODE_PODS,
    PIPELINE_HEALTH,
    Topic,
)
from streams.contract.wire import Decoder, Encoder
from tests.paths import shared
from tests.sinks.batch import batch
from tests.sinks.records import dead_letter, episode, health, incidents, job_state, nccl, nic, pods

MUTANTS = 10_000
VIEWS = (
    "port_samples",
    "port_reads",
    "holder_samples",
    "nccl_calls_current",
    "pods_current",
    "nodes_current",
    "ports_current",
    "job_states_current",
    "episodes_current",
    "incidents_current",
    "incident_causes",
    "incident_victims",
    "incident_ruled_out",
    "dead_letters_current",
    "pipeline_health_current",
)
ORIGINALS: dict[Topic, Sequence[msgspec.Struct]] = {
    NIC_COUNTERS: [nic()],
    NCCL_THROUGHPUT: [nccl()],
    NODE_PODS: [pods()],
    JOB_STATES: [job_state()],
    EPISODES: [episode()],
    INCIDENTS: incidents(),
    DEAD_LETTERS: [dead_letter()],
    PIPELINE_HEALTH: [health()],
}


def test_whatever_passes_as_a_record_can_be_stored_and_breaks_no_reader(store: Store) -> None:
    """One byte of a valid message changed, 10,000 times: it is either refused or a row."""
    dice = random.Random(11)
    sink = ClickHouseSink(store)
    refused = kept = 0
    for topic in TOPICS:
        survivors = []
        decode, encode = Decoder(topic), Encoder(topic)
        originals = [encode(record) for record in ORIGINALS[topic]]
        for _ in range(MUTANTS // len(TOPICS)):
            value = bytearray(dice.choice(originals))
            value[dice.randrange(5, len(value))] = dice.randrange(256)
            try:
                record = decode(bytes(value))
                sink.check(record)
            except InvalidRecordError:
                refused += 1
            else:
                survivors.append(record)
        kept += len(survivors)
        sink.write(batch(topic, survivors))

    for view in VIEWS:
        store.query(f"SELECT * FROM {view}")  # noqa: S608
    read_incidents(store)
    assert refused + kept == MUTANTS
    assert refused > 1000
    assert kept > 1000


def test_too_many_parts_is_an_outage_that_passes_and_the_batch_is_kept(store: Store) -> None:
    sink = ClickHouseSink(store)
    store.command("SYSTEM STOP MERGES job_states")
    store.command("ALTER TABLE job_states MODIFY SETTING parts_to_throw_insert = 2, parts_to_delay_insert = 2")
    for first in range(2):
        sink.write(batch(JOB_STATES, [job_state(18_011_376_000 + first)], first=first))
    third = batch(JOB_STATES, [job_state(18_011_376_002)], first=2)

    with pytest.raises(RetryableError, match="too many parts"):
        sink.write(third)
    store.command("SYSTEM START MERGES job_states")
    store.command("OPTIMIZE TABLE job_states FINAL")
    sink.write(third)

    assert store.query("SELECT count() FROM job_states_history").rows == [(3,)]
    assert sink.counts() == {"rows_job_states": 3}


def test_every_wording_of_too_many_parts_is_an_outage() -> None:
    texts = json.loads(shared("corpus", "kafka_clickhouse", "clickhouse_too_many_parts_texts.json").read_text())

    assert len(texts) == 4
    for case in texts:
        assert is_retryable(DatabaseError(case["text"])), case["source"]


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (OSError(28, "No space left on device"), True),
        (ConnectionRefusedError(111, "Connection refused"), True),
        (
            DatabaseError("Code: 243. DB::Exception: Cannot reserve 1.00 MiB, not enough space. (NOT_ENOUGH_SPACE)"),
            True,
        ),
        (DatabaseError("Code: 241. DB::Exception: Memory limit exceeded", code=241), True),
        (OperationalError("Error HTTPConnectionPool(host='h', port=8123): Max retries exceeded"), True),
        (DatabaseError("Code: 60. DB::Exception: Table t does not exist. (UNKNOWN_TABLE)", code=60), False),
        (DatabaseError("Code: 53. DB::Exception: Type mismatch", code=53), False),
        (DatabaseError("Code: 516. DB::Exception: Authentication failed", code=516), False),
    ],
)
def test_an_outage_is_waited_for_and_a_fault_is_not(error: Exception, retryable: bool) -> None:
    assert is_retryable(error) is retryable


def test_an_error_is_told_in_one_line_without_stack_and_version() -> None:
    said = "Code: 62. DB::Exception: Syntax error: failed. (SYNTAX_ERROR)"

    assert explain(DatabaseError(f"{said} (version 26.9.2.1 (official build)), Stack trace:\n0. main")) == said


def test_a_table_that_is_missing_stops_the_sink_instead_of_being_waited_for(store: Store) -> None:
    store.command("DROP TABLE job_states")

    with pytest.raises(StoreError, match="job_states"):
        ClickHouseSink(store).write(batch(JOB_STATES, [job_state()]))
