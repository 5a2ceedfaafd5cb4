"""Sampling never waits for Kafka; what can be kept is delivered in order, what cannot is counted."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from structlog.testing import capture_logs

from fabric_sentinel.broker import EmbeddedBroker
from producers.publish import MESSAGE_OVERHEAD_BYTES, Left, Publisher
from tests.producers.publish.gate import Gate

TOPICS = {"t": 4}
QUICKLY = {"away_after_s": 0.3, "probe_every_s": 0.1}
VALUE_BYTES = 100
MESSAGE_BYTES = VALUE_BYTES + 2 + MESSAGE_OVERHEAD_BYTES


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(TOPICS) as running:
        yield running


@pytest.fixture
def gate() -> Iterator[Gate]:
    door = Gate()
    yield door
    door.close()


def value(number: int) -> bytes:
    return b"%0100d" % number


def publish(publisher: Publisher, numbers: range) -> None:
    for number in numbers:
        publisher.publish("t", b"k%d" % (number % 3), value(number))


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


def read_all(bootstrap: str, topic: str = "t", partitions: int = 4) -> list[tuple[int, bytes, int]]:
    """(partition, key, number) of everything in the topic, each partition in log order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "enable.auto.commit": False})
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in range(partitions)}
    consumer.assign([TopicPartition(topic, p, 0) for p in ends])
    found: list[tuple[int, bytes, int]] = []
    deadline = time.monotonic() + 20
    while len(found) < sum(ends.values()) and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.2):
            assert message.error() is None
            found.append((message.partition(), message.key(), int(message.value())))
    consumer.close()
    return found


def per_key(found: list[tuple[int, bytes, int]]) -> dict[bytes, list[int]]:
    """Numbers of each key in order, repeats left out where the same number was seen before."""
    order: dict[bytes, dict[int, None]] = {}
    for _, key, number in found:
        order.setdefault(key, {}).setdefault(number)
    return {key: list(numbers) for key, numbers in order.items()}


def test_every_message_arrives_once_and_each_key_in_order(broker: EmbeddedBroker) -> None:
    publisher = Publisher({"bootstrap.servers": broker.bootstrap})
    publish(publisher, range(3000))
    assert publisher.close(20) == Left(messages=0, size_bytes=0)
    found = read_all(broker.bootstrap)
    assert len(found) == 3000
    assert per_key(found) == {b"k%d" % key: list(range(key, 3000, 3)) for key in range(3)}
    counts = publisher.counts
    assert (counts.accepted, counts.delivered, counts.dropped, counts.waiting_bytes) == (3000, 3000, 0, 0)


def test_a_message_can_be_sent_to_a_partition_of_choice(broker: EmbeddedBroker) -> None:
    publisher = Publisher({"bootstrap.servers": broker.bootstrap})
    for partition in range(4):
        publisher.publish("t", b"same", value(partition), partition)
    publisher.close(20)
    assert sorted(read_all(broker.bootstrap)) == [(p, b"same", p) for p in range(4)]


def test_what_was_published_before_the_broker_came_arrives_in_order(broker: EmbeddedBroker, gate: Gate) -> None:
    publisher = Publisher({"bootstrap.servers": gate.bootstrap}, **QUICKLY)
    with capture_logs() as lines:
        publish(publisher, range(100))
        wait_until(lambda: publisher.counts.away, "away")
        publish(publisher, range(100, 300))
        gate.open(broker.bootstrap)
        wait_until(lambda: publisher.counts.delivered == 300, "delivery")
    publisher.close(5)
    found = read_all(broker.bootstrap)
    assert len(found) == 300
    assert per_key(found) == {b"k%d" % key: list(range(key, 300, 3)) for key in range(3)}
    said = [line["event"] for line in lines if line["log_level"] != "debug"]
    assert said == ["broker away, keeping the newest messages", "broker back"]


def test_while_the_broker_is_away_the_newest_are_kept_within_the_bound(broker: EmbeddedBroker, gate: Gate) -> None:
    publisher = Publisher({"bootstrap.servers": gate.bootstrap}, buffer_bytes=50 * MESSAGE_BYTES, **QUICKLY)
    publish(publisher, range(20))
    wait_until(lambda: publisher.counts.away, "away")
    publish(publisher, range(20, 200))
    counts = publisher.counts
    assert (counts.waiting, counts.in_flight, counts.dropped) == (50, 0, 150)
    assert counts.waiting_bytes == 50 * MESSAGE_BYTES
    assert counts.dropped_bytes == 150 * VALUE_BYTES
    gate.open(broker.bootstrap)
    wait_until(lambda: publisher.counts.delivered == 50, "delivery")
    publisher.close(5)
    assert sorted(number for _, _, number in read_all(broker.bootstrap)) == list(range(150, 200))


def test_publishing_never_waits_for_a_broker_that_hangs(broker: EmbeddedBroker) -> None:
    publisher = Publisher({"bootstrap.servers": broker.bootstrap}, buffer_bytes=100 * MESSAGE_BYTES, **QUICKLY)
    publish(publisher, range(30))
    wait_until(lambda: publisher.counts.delivered == 30, "delivery")
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    slowest_s = 0.0
    try:
        for number in range(30, 3000):
            before = time.monotonic()
            publish(publisher, range(number, number + 1))
            slowest_s = max(slowest_s, time.monotonic() - before)
        wait_until(lambda: publisher.counts.away, "away")
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    wait_until(lambda: publisher.counts.waiting + publisher.counts.in_flight == 0, "delivery of the rest")
    publish(publisher, range(3000, 3030))
    publisher.close(10)
    assert slowest_s < 0.1
    order = per_key(read_all(broker.bootstrap))
    for key in range(3):
        numbers = order[b"k%d" % key]
        assert numbers[:10] == list(range(key, 30, 3))
        kept = [number for number in numbers if number >= 2913]  # what hung was an eighth, and may come twice
        assert kept == [number for number in range(2913, 3030) if number % 3 == key]
    counts = publisher.counts
    assert counts.accepted == counts.delivered + counts.dropped


def test_a_topic_that_refuses_loses_only_its_own_messages_and_says_so_once(broker: EmbeddedBroker) -> None:
    publisher = Publisher({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 2000})
    with capture_logs() as lines:
        for number in range(10):
            publisher.publish("t", b"k", b"x" * 3000)
            publisher.publish("t", b"k", value(number))
        publisher.publish("t", b"k", value(0), 9)  # there are four partitions
        wait_until(lambda: publisher.counts.delivered == 10, "delivery")
        wait_until(lambda: publisher.counts.refused == 11, "refusals")
    assert publisher.close(5).messages == 0
    refusals = [line for line in lines if line["event"] == "message refused, dropped"]
    assert len(refusals) == 2
    assert [number for _, _, number in read_all(broker.bootstrap)] == list(range(10))


def test_an_unforeseen_failure_in_the_thread_is_logged_and_delivery_goes_on(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher({"bootstrap.servers": broker.bootstrap}, **QUICKLY)
    failures = iter([RuntimeError("unforeseen")])
    serve = publisher._serve

    def failing() -> None:
        if (failure := next(failures, None)) is not None:
            raise failure
        serve()

    monkeypatch.setattr(publisher, "_serve", failing)
    with capture_logs() as lines:
        publish(publisher, range(100))
        wait_until(lambda: publisher.counts.delivered == 100, "delivery")
    assert publisher.close(10).messages == 0
    assert "publishing failed, beginning anew" in [line["event"] for line in lines]
    assert per_key(read_all(broker.bootstrap)) == {b"k%d" % key: list(range(key, 100, 3)) for key in range(3)}


def test_something_that_is_no_message_is_refused_and_holds_up_nobody(broker: EmbeddedBroker) -> None:
    publisher = Publisher({"bootstrap.servers": broker.bootstrap})
    publisher.publish("t", b"k", value(0), None, {"header": 7})  # type: ignore[dict-item]
    publish(publisher, range(3))
    assert publisher.close(10).messages == 0
    assert (publisher.counts.delivered, publisher.counts.refused) == (3, 1)


def test_closing_says_what_could_not_be_delivered(gate: Gate) -> None:
    publisher = Publisher({"bootstrap.servers": gate.bootstrap}, **QUICKLY)
    publish(publisher, range(7))
    before = time.monotonic()
    assert publisher.close(0.5) == Left(messages=7, size_bytes=7 * VALUE_BYTES)
    assert time.monotonic() - before < 3
    publish(publisher, range(1))
    assert publisher.counts.dropped == 1


def test_a_forked_child_delivers_its_own_messages_and_the_parent_goes_on(broker: EmbeddedBroker) -> None:
    publisher = Publisher({"bootstrap.servers": broker.bootstrap})
    publish(publisher, range(10))
    wait_until(lambda: publisher.counts.delivered == 10, "the parent's delivery")
    child = os.fork()
    if child == 0:
        publish(publisher, range(10, 20))
        left = publisher.close(10)
        os._exit(0 if left.messages == 0 and publisher.counts.delivered == 10 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    publish(publisher, range(20, 30))
    assert publisher.close(10).messages == 0
    assert sorted(number for _, _, number in read_all(broker.bootstrap)) == list(range(30))


def test_a_wrong_setting_is_refused_at_the_start_by_name() -> None:
    with pytest.raises(ValueError, match=r"bootstrap\.server"):
        Publisher({"bootstrap.server": "x:1"})


def test_a_broker_that_is_away_costs_two_lines_however_long(gate: Gate) -> None:
    with capture_logs() as lines:
        fast = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}
        publisher = Publisher({"bootstrap.servers": gate.bootstrap, **fast}, **QUICKLY)
        publish(publisher, range(5))
        wait_until(lambda: publisher.counts.away, "away")
        wait_until(lambda: publisher.counts.broker_errors >= 10, "a flood of errors")
        publisher.close(0.1)
    assert [line["log_level"] for line in lines if line["log_level"] != "debug"] == ["warning", "warning"]
