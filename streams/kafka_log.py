"""Reads topics as logs: from a time or the beginning, to their present end or until told to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as Place

from streams.contract.errors import RetryableError
from streams.contract.kafka import KafkaConnection

ANSWER_TIMEOUT_S = 15.0
POLL_S = 0.2
BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMessage:
    """One message as it lies in the log."""

    topic: str
    partition: int
    offset: int
    broker_time_ms: int | None = None
    key: bytes | None = None
    value: bytes | None = None
    headers: dict[str, bytes] = field(default_factory=dict)


def read_to_end(
    connection: KafkaConnection, topics: list[str], *, from_ms: int | None = None, until_ms: int | None = None
) -> Iterator[LogMessage]:
    """Messages from a broker time (or the beginning) up to a broker time or the end as it was at the call.

    Order holds inside a partition only. Raises RetryableError when the brokers do not answer.
    """
    consumer = _consumer(connection)
    try:
        starts = _starts(consumer, topics, from_ms)
        ends = {(place.topic, place.partition): _end(consumer, place) for place in starts}
        unread = {(place.topic, place.partition) for place in starts} - {key for key, end in ends.items() if not end}
        consumer.assign([place for place in starts if (place.topic, place.partition) in unread])
        while unread:
            for raw in consumer.consume(BATCH, POLL_S):
                place = (raw.topic(), raw.partition())
                if _is_end(raw):
                    unread.discard(place)
                    continue
                message = _plain(raw)
                if _past(message, until_ms) or message.offset >= ends[place] - 1:
                    unread.discard(place)
                if message.offset < ends[place] and not _past(message, until_ms):
                    yield message
    finally:
        consumer.close()


def follow(
    connection: KafkaConnection, topics: list[str], *, from_ms: int | None = None, stop: Callable[[], bool]
) -> Iterator[LogMessage]:
    """Messages from a broker time (or the beginning), as they come, until `stop` is true and no more are waiting."""
    consumer = _consumer(connection)
    try:
        consumer.assign(_starts(consumer, topics, from_ms))
        while True:
            batch = [_plain(raw) for raw in consumer.consume(BATCH, POLL_S) if not _is_end(raw)]
            yield from batch
            if not batch and stop():
                return
    finally:
        consumer.close()


def _consumer(connection: KafkaConnection) -> Consumer:
    return Consumer(
        {
            **connection.confluent(),
            "group.id": "fabric-sentinel-reader",  # Required by the client; nothing is ever committed under it
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,  # Compaction leaves no message at the last offset: this notice ends the read
            "log_level": 0,
        }
    )


def _starts(consumer: Consumer, topics: list[str], from_ms: int | None) -> list[Place]:
    """Where to begin in each partition; raises RetryableError, or ValueError for a topic that is not there."""
    try:
        listed = consumer.list_topics(timeout=ANSWER_TIMEOUT_S).topics
    except KafkaException as error:
        raise RetryableError(f"the brokers do not answer: {error.args[0].str()}") from error
    missing = [topic for topic in topics if topic not in listed]
    if missing:
        raise ValueError(f"no such topics: {', '.join(missing)}")
    numbers = [(topic, number) for topic in topics for number in sorted(listed[topic].partitions)]
    if from_ms is None:
        return [Place(topic, number, OFFSET_BEGINNING) for topic, number in numbers]
    return list(consumer.offsets_for_times([Place(*number, from_ms) for number in numbers], timeout=ANSWER_TIMEOUT_S))


def _end(consumer: Consumer, place: Place) -> int:
    """The offset after the last message to read; 0 where there is none."""
    low, high = consumer.get_watermark_offsets(place, timeout=ANSWER_TIMEOUT_S)
    return 0 if place.offset == OFFSET_END or high <= max(low, place.offset) else int(high)


def _past(message: LogMessage, until_ms: int | None) -> bool:
    return until_ms is not None and message.broker_time_ms is not None and message.broker_time_ms > until_ms


def _is_end(raw: Message) -> bool:
    """True for the notice that a partition is read up; raises ValueError for what no retry mends."""
    error = raw.error()
    if error is None:
        return False
    if error.fatal() or error.code() in {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION}:
        raise ValueError(f"cannot read {raw.topic()}: {error.str()}")
    return True


def _plain(raw: Message) -> LogMessage:
    kind, time_ms = raw.timestamp()
    return LogMessage(
        topic=raw.topic(),
        partition=raw.partition(),
        offset=raw.offset(),
        broker_time_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else time_ms,
        key=raw.key(),
        value=raw.value(),
        headers={name: value for name, value in raw.headers() or [] if value is not None},
    )
