"""The consumer loop against a broker that speaks the real protocol."""

from collections.abc import Callable

import msgspec
import pytest
import structlog

from fabric_sentinel.broker import EmbeddedBroker
from sinks.batches import Limits
from sinks.clickhouse.sink import ClickHouseSettings, run
from sinks.clickhouse.store import Store
from streams.contract.kafka import KafkaConnection
from streams.contract.plumbing import DeadLetter, HealthStatus, PipelineHealth
from streams.contract.topics import (
    DEAD_LETTERS,
    EPISODES,
    INCIDENTS,
    JOB_STATES,
    NIC_COUNTERS,
    NODE_PODS,
    PIPELINE_HEALTH,
    Topic,
)
from streams.contract.wire import Encoder
from tests.sinks.records import dead_letter, episode, health, incidents, job_state, nic, nic_clock, pods
from tests.sinks.running import (
    QUICK,
    SESSION_S,
    TOPIC_COUNTS,
    MemorySink,
    committed,
    produce,
    read_all,
    running,
    settings,
    sinking,
    wait_for,
)


@pytest.fixture
def broker(new_embedded_broker: Callable[..., EmbeddedBroker]) -> str:
    return new_embedded_broker(TOPIC_COUNTS).bootstrap


def test_what_was_written_is_committed_and_not_read_again(broker: str) -> None:
    first, second = MemorySink(), MemorySink()
    produce(broker, JOB_STATES, [job_state(tick) for tick in range(100, 110)])

    with running(sinking(settings(broker, [JOB_STATES]), first)):
        wait_for(lambda: len(first.records) == 10, "ten records")
        wait_for(lambda: committed(broker, "sink-test", JOB_STATES)[0] == 10, "the commit")
    produce(broker, JOB_STATES, [job_state(110)])
    with running(sinking(settings(broker, [JOB_STATES]), second)):
        wait_for(lambda: second.records, "the eleventh record")

    assert first.records == [job_state(tick) for tick in range(100, 110)]
    assert second.records == [job_state(110)]


def test_nothing_is_committed_before_it_is_written_and_an_outage_loses_nothing(broker: str) -> None:
    sink = MemorySink()
    sink.away = "the disk is full: 12 bytes left"
    produce(broker, JOB_STATES, [job_state(tick) for tick in range(100, 150)])

    with structlog.testing.capture_logs() as logs, running(sinking(settings(broker, [JOB_STATES]), sink)):
        wait_for(lambda: sink.attempts >= 4, "four attempts")
        assert committed(broker, "sink-test", JOB_STATES)[0] < 0
        reports = [r for r in read_all(broker, PIPELINE_HEALTH, 3) if isinstance(r, PipelineHealth)]
        produce(broker, JOB_STATES, [job_state(150)])
        sink.away = ""
        wait_for(lambda: len(sink.records) == 51, "all records")
        wait_for(lambda: committed(broker, "sink-test", JOB_STATES)[0] == 51, "the commit")

    assert sink.records == [job_state(tick) for tick in range(100, 151)]
    assert (reports[-1].status, reports[-1].message) == (HealthStatus.DOWN, "store: the disk is full: 12 bytes left")
    assert reports[-1].counts["retries"] >= 1
    told = [(entry["log_level"], entry["part"], entry["event"]) for entry in logs]
    assert told == [("warning", "store", "the disk is full: 12 bytes left"), ("info", "store", "works again")]


def test_a_sink_stopped_in_an_outage_ends_at_once_and_the_next_one_goes_on(broker: str) -> None:
    away, back = MemorySink(), MemorySink()
    away.away = "no"
    produce(broker, JOB_STATES, [job_state()])

    with running(sinking(settings(broker, [JOB_STATES], retry_first_s=300.0, retry_most_s=300.0), away)):
        wait_for(lambda: away.attempts, "an attempt")
    with running(sinking(settings(broker, [JOB_STATES]), back)):
        wait_for(lambda: back.records, "the record")

    assert back.records == [job_state()]


def test_poison_goes_to_dead_letters_with_reason_and_bytes_and_the_rest_goes_on(broker: str) -> None:
    sink = MemorySink()
    good = Encoder(NIC_COUNTERS)(nic())
    poison = [b"", b"garbage", b"\x00\x7f\xff\xff\xff", good + b"tail", good[:-3], None]
    produce(broker, NIC_COUNTERS, [nic(), *poison, nic(cluster="refused"), nic(seq=2)], partition=1)

    with running(sinking(settings(broker, [NIC_COUNTERS]), sink)):
        wait_for(lambda: len(sink.records) == 2, "both good records")
        wait_for(lambda: committed(broker, "sink-test", NIC_COUNTERS, 1)[0] == 9, "the commit")
    letters = [letter for letter in read_all(broker, DEAD_LETTERS, 7) if isinstance(letter, DeadLetter)]

    assert sink.records == [nic(), nic(seq=2)]
    assert [(letter.topic, letter.partition, letter.offset) for letter in letters] == [
        ("nic-counters", 1, offset) for offset in range(1, 8)
    ]
    assert [letter.value for letter in letters[:6]] == poison
    assert all(letter.reason and letter.component == "sink-test" for letter in letters)
    assert letters[6].reason == "this store does not take that cluster"
    assert letters[0].key == b"k"
    assert letters[0].broker_time_ms is not None


def test_a_tombstone_on_a_compacted_topic_is_no_poison(broker: str) -> None:
    sink = MemorySink()
    produce(broker, INCIDENTS, [None, incidents()[0]])

    with running(sinking(settings(broker, [INCIDENTS]), sink)):
        wait_for(lambda: committed(broker, "sink-test", INCIDENTS)[0] == 2, "the commit")
        reports = read_all(broker, PIPELINE_HEALTH, 3)

    assert sink.records == [incidents()[0]]
    assert isinstance(reports[-1], PipelineHealth)
    assert "dead_letters" not in reports[-1].counts


def test_a_sink_that_dies_between_note_and_write_makes_the_same_cut_again(broker: str) -> None:
    dead, reborn = MemorySink(), MemorySink()
    dead.away = "dying"
    slow = Limits(messages=3, sample_linger_s=0.1)
    produce(broker, NIC_COUNTERS, [nic(seq=seq) for seq in (1, 2, 3)])

    with running(sinking(settings(broker, [NIC_COUNTERS], limits=slow), dead)):
        wait_for(lambda: dead.attempts, "an attempt")
    assert committed(broker, "sink-test", NIC_COUNTERS) == (0, "cut=2")
    produce(broker, NIC_COUNTERS, [nic(seq=seq) for seq in (4, 5)])
    with running(sinking(settings(broker, [NIC_COUNTERS]), reborn)):
        wait_for(lambda: len(reborn.records) == 5, "all records")

    assert reborn.batches[0].token == "nic-counters/0/0-2"
    assert committed(broker, "sink-test", NIC_COUNTERS) == (5, "")


def test_a_sink_that_looks_back_reads_everything_at_each_start_and_commits_nothing(broker: str) -> None:
    sinks = [MemorySink(), MemorySink()]
    produce(broker, INCIDENTS, incidents())

    for sink in sinks:
        configured = settings(broker, [INCIDENTS], look_back_s={INCIDENTS.name: None})
        with running(sinking(configured, sink)):
            wait_for(lambda: len(sink.records) == 2, "both incidents")  # noqa: B023 (awaited here)

    assert committed(broker, "sink-test", INCIDENTS)[0] < 0


def test_every_topic_reaches_its_view_and_a_second_life_of_the_sink_adds_nothing(broker: str, dsn: str) -> None:
    everything: list[tuple[Topic, list[msgspec.Struct]]] = [
        (NIC_COUNTERS, [nic(), nic_clock(), nic(seq=2)]),
        (NODE_PODS, [pods()]),
        (JOB_STATES, [job_state()]),
        (EPISODES, [episode()]),
        (INCIDENTS, [*incidents()]),
        (DEAD_LETTERS, [dead_letter()]),
        (PIPELINE_HEALTH, [health()]),
    ]
    for topic, records in everything:
        produce(broker, topic, records)
    configured = ClickHouseSettings(
        kafka=KafkaConnection(bootstrap=broker),
        cluster="lab",
        instance="here",
        dsn=dsn,
        group="clickhouse",
        limits=QUICK,
        health_every_s=60.0,
        session_timeout_s=SESSION_S,
    )
    watch = Store(dsn)

    def count(view: str) -> object:
        try:
            return watch.query(f"SELECT count() FROM {view}").rows[0][0]  # noqa: S608
        except Exception:  # noqa: BLE001 (the view is not there yet)
            return None

    for _ in range(2):
        with running(lambda stop: run(configured, stop)):
            for view, expected in EXPECTED.items():
                wait_for(lambda: count(view) == expected, f"{expected} rows in {view}")  # noqa: B023 (awaited here)
    watch.close()


EXPECTED = {
    "port_samples": 18,
    "pods_current": 1,
    "job_states_current": 1,
    "episodes_current": 1,
    "incidents_current": 2,
    "dead_letters_current": 1,
}
