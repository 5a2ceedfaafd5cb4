"""Reads topics as logs: from a time or the beginning, to their present end or until told to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    connection: KafkaConnection,
    topics: list[str],
    *,
    from_ms: int | None = None,
    until_ms: int | None = None,
    ends: Mapping[int, int] | None = None,
) -> Iterator[LogMessage]:
    """Messages from a broker time (or the beginning) up to a broker time or the end as it was at the call.

    With `ends` only those partitions are read, each up to its offset. Order holds inside a partition only. Raises
    RetryableError when the brokers do not answer.
    """
    consumer = _consumer(connection)
    try:
        starts = _starts(consumer, topics, from_ms)
        stops = {(place.topic, place.partition): _end(consumer, place, ends) for place in starts}
        unread = {place for place, stop in stops.items() if stop}
        consumer.assign([place for place in starts if (place.topic, place.partition) in unread])
        while unread:
            for raw in consumer.consume(BATCH, POLL_S):
                place = (raw.topic(), raw.partition())
                if _is_end(raw):
                    unread.discard(place)
                    continue
                message = _plain(raw)
                if _past(message, until_ms) or message.offset >= stops[place] - 1:
                    unread.discard(place)
                if message.offset < stops[place] and not _past(message, until_ms):
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


def newest_before_commit(
    connection: KafkaConnection, topic: str, *, group: str, partitions: set[int]
) -> list[LogMessage]:
    """Each key's newest message before what `group` has committed, in log order: what a compacted topic has told.

    Raises RetryableError when the brokers do not answer.
    """
    consumer = _consumer(connection, group=group)
    try:
        committed = consumer.committed([Place(topic, number) for number in partitions], timeout=ANSWER_TIMEOUT_S)
    except KafkaException as error:
        raise RetryableError(f"the brokers do not answer: {error.args[0].str()}") from error
    finally:
        consumer.close()
    ends = {place.partition: place.offset for place in committed if place.offset > 0}
    return _newest_of_each_key(read_to_end(connection, [topic], ends=ends))


def newest_before(connection: KafkaConnection, topic: str, before_ms: int) -> list[LogMessage]:
    """Each key's newest message before a broker time, in log order. Raises RetryableError as above."""
    return _newest_of_each_key(read_to_end(connection, [topic], until_ms=before_ms - 1))


def _newest_of_each_key(messages: Iterator[LogMessage]) -> list[LogMessage]:
    newest = {(message.partition, message.key): message for message in messages}
    return sorted(newest.values(), key=lambda message: (message.partition, message.offset))


def _consumer(connection: KafkaConnection, *, group: str = "fabric-sentinel-reader") -> Consumer:
    return Consumer(
        {
            **connection.confluent(),
            "group.id": group,  # Required by the client, which joins no group and commits nothing here
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


def _end(consumer: Consumer, place: Place, ends: Mapping[int, int] | None) -> int:
    """The offset after the last message to read; 0 where there is none."""
    low, high = consumer.get_watermark_offsets(place, timeout=ANSWER_TIMEOUT_S)
    high = high if ends is None else min(high, ends.get(place.partition, 0))
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
