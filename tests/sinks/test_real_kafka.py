"""The consumer loop on a real Kafka: what the embedded broker cannot promise."""

import time
from collections.abc import Callable

import pytest
import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from streams.contract.topics import JOB_STATES, NIC_COUNTERS
from tests.services.kafka import Kafka
from tests.sinks.records import job_state, nic
from tests.sinks.running import TOPIC_COUNTS, MemorySink, committed, produce, running, settings, sinking, wait_for

pytestmark = pytest.mark.services


@pytest.fixture
def broker(new_kafka: Callable[..., Kafka]) -> Kafka:
    kafka = new_kafka()
    kafka.start()
    kafka.create_topics(TOPIC_COUNTS)
    return kafka


def test_a_broker_that_dies_and_comes_back_is_told_survived_and_nothing_is_lost(broker: Kafka) -> None:
    sink = MemorySink()
    produce(broker.bootstrap, JOB_STATES, [job_state(tick) for tick in range(100, 110)])

    with structlog.testing.capture_logs() as logs, running(sinking(settings(broker.bootstrap, [JOB_STATES]), sink)):
        wait_for(lambda: len(sink.records) == 10, "the first ten")
        broker.kill9()
        wait_for(lambda: any(entry["part"] == "kafka" for entry in logs), "a line that says so")
        broker.start()
        produce(broker.bootstrap, JOB_STATES, [job_state(tick) for tick in range(110, 120)])
        wait_for(lambda: len(sink.records) >= 20, "the other ten")
        wait_for(lambda: committed(broker.bootstrap, "sink-test", JOB_STATES)[0] == 20, "the commit")

    assert {getattr(record, "tick", 0) for record in sink.records} == set(range(100, 120))
    told = [(entry["log_level"], entry["part"]) for entry in logs]
    # A broker that starts can be up, away for another reason, and up: a line each time, never one per attempt.
    assert told[-1] == ("info", "kafka")
    assert ("warning", "kafka") in told
    assert len(told) <= 4


def test_a_sink_whose_broker_is_not_there_yet_waits_for_it(broker: Kafka) -> None:
    sink = MemorySink()
    produce(broker.bootstrap, JOB_STATES, [job_state()])
    broker.stop()

    with running(sinking(settings(broker.bootstrap, [JOB_STATES]), sink)):
        broker.start()
        wait_for(lambda: sink.records, "the record")

    assert sink.records[0] == job_state()


def test_a_sink_stops_at_once_though_its_broker_is_dead(broker: Kafka) -> None:
    sink = MemorySink()
    produce(broker.bootstrap, JOB_STATES, [job_state()])

    with running(sinking(settings(broker.bootstrap, [JOB_STATES]), sink)):
        wait_for(lambda: sink.records, "the record")
        broker.kill9()
        began = time.monotonic()

    assert time.monotonic() - began < 30


def test_two_sinks_of_a_group_share_the_partitions_and_lose_nothing_when_one_leaves(broker: Kafka) -> None:
    left, stays = MemorySink(), MemorySink()
    configured = settings(broker.bootstrap, [NIC_COUNTERS])

    with running(sinking(configured, stays)):
        with running(sinking(configured, left)):
            wait_for(lambda: _owners(broker) == 2, "two members")
            for partition in (0, 1):
                produce(broker.bootstrap, NIC_COUNTERS, [nic(seq=seq) for seq in (1, 2, 3)], partition)
            wait_for(lambda: len(left.records) + len(stays.records) >= 6, "six records")
        for partition in (0, 1):
            produce(broker.bootstrap, NIC_COUNTERS, [nic(seq=4)], partition)
        wait_for(lambda: [_committed(broker, partition) for partition in (0, 1)] == [4, 4], "the commits")

    seen = {(batch.partition, offset) for sink in (left, stays) for batch in sink.batches for offset in batch.offsets}
    assert seen == {(partition, offset) for partition in (0, 1) for offset in range(4)}


def _committed(broker: Kafka, partition: int) -> int:
    return committed(broker.bootstrap, "sink-test", NIC_COUNTERS, partition)[0]


def _owners(broker: Kafka) -> int:
    admin = AdminClient(broker.client())  # Kept: with it would go its pending answer
    try:
        described = admin.describe_consumer_groups(["sink-test"])["sink-test"].result(60)
    except KafkaException:  # The group's coordinator is still loading
        return 0
    return sum(1 for member in described.members if member.assignment and member.assignment.topic_partitions)
