"""A sink that runs in a thread, messages for it, and a store in memory that can be away."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from sinks.batches import Batch, Limits
from sinks.consume import ConsumeSettings, Sink, consume
from streams.contract.errors import InvalidRecordError, RetryableError
from streams.contract.kafka import KafkaConnection
from streams.contract.topics import ALL, Topic
from streams.contract.wire import Decoder, Encoder

PARTITIONS = 2
TOPIC_COUNTS = {topic.name: topic.partitions(PARTITIONS) for topic in ALL}
QUICK = Limits(sample_linger_s=0.1, finding_linger_s=0.05)
DEADLINE_S = 90.0
SESSION_S = 1.5  # The embedded broker forgets a member only then, even one that has left


def settings(bootstrap: str, topics: Sequence[Topic], **changes: object) -> ConsumeSettings:
    fields: dict[str, object] = {
        "kafka": KafkaConnection(bootstrap=bootstrap),
        "cluster": "lab",
        "component": "sink-test",
        "instance": "here",
        "group": "sink-test",
        "topics": topics,
        "limits": QUICK,
        "health_every_s": 0.2,
        "retry_first_s": 0.05,
        "retry_most_s": 0.2,
        "session_timeout_s": SESSION_S,
    }
    return ConsumeSettings(**{**fields, **changes})  # type: ignore[arg-type]


class MemorySink:
    """Keeps what it is given; while `away` says why, it takes nothing."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.attempts = 0
        self.away = ""

    def check(self, record: msgspec.Struct) -> None:
        if getattr(record, "cluster", "") == "refused":
            raise InvalidRecordError("this store does not take that cluster")

    def write(self, batch: Batch) -> None:
        self.attempts += 1
        if self.away:
            raise RetryableError(self.away)
        self.batches.append(batch)

    def counts(self) -> Mapping[str, int]:
        return {"attempts": self.attempts}

    @property
    def records(self) -> list[msgspec.Struct]:
        return [record for batch in self.batches for record in batch.records]


@contextmanager
def running(task: Callable[[threading.Event], None]) -> Iterator[threading.Event]:
    """`task(stop)` in a thread; stopped and joined at the end, and what it raised is raised here."""
    stop, failures = threading.Event(), []

    def body() -> None:
        try:
            task(stop)
        except BaseException as error:  # noqa: BLE001 (raised again below)
            failures.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(DEADLINE_S)
    if failures:
        raise failures[0]
    assert not thread.is_alive(), "the sink did not stop"


def sinking(configured: ConsumeSettings, sink: Sink) -> Callable[[threading.Event], None]:
    return lambda stop: consume(configured, sink, stop)


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for: {what}"
        time.sleep(0.02)


def produce(bootstrap: str, topic: Topic, records: Sequence[msgspec.Struct | bytes | None], partition: int = 0) -> None:
    """Records, or raw bytes where something else is wanted, in order to one partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    encoder = Encoder(topic)
    for record in records:
        value = encoder(record) if isinstance(record, msgspec.Struct) else record
        producer.produce(topic.name, value=value, key=b"k", partition=partition, headers=dict(encoder.headers))
    assert producer.flush(20) == 0


def read_all(bootstrap: str, topic: Topic, count: int, *, patience_s: float = 20.0) -> list[msgspec.Struct]:
    """The first `count` records of a topic's partition 0, or fewer if there are no more for so long."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
    consumer.assign([TopicPartition(topic.name, 0, 0)])
    decoder = Decoder(topic)
    found: list[msgspec.Struct] = []
    deadline = time.monotonic() + patience_s
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(100, 0.2):
            assert message.error() is None, message.error()
            found.append(decoder(message.value()))
    consumer.close()
    return found


def committed(bootstrap: str, group: str, topic: Topic, partition: int = 0) -> tuple[int, str]:
    """A group's committed offset and note."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    place = consumer.committed([TopicPartition(topic.name, partition)], timeout=60)[0]
    consumer.close()
    return place.offset, place.metadata or ""
