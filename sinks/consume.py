"""The loop that every sink runs: read, gather, write, and only then commit; the one file that speaks to Kafka here."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from sinks.batches import DEFAULT_LIMITS, Batch, Batches, Limits, Place, Refused
from sinks.letters import letter_of
from sinks.state import SinkState
from streams.contract.errors import InvalidRecordError, RetryableError
from streams.contract.kafka import PARTITIONER, KafkaConnection
from streams.contract.plumbing import DeadLetter, HealthStatus, PipelineHealth
from streams.contract.topics import DEAD_LETTERS, PIPELINE_HEALTH, Topic
from streams.contract.wire import Decoder, Encoder, SchemaIds

POLL_S = 0.1
POLL_MESSAGES = 500
COMMIT_ANSWER_S = 5.0
COMMIT_POLL_S = 0.005
CLOSE_S = 5.0
BROKER_ANSWER_S = 10.0
PREFETCH_KBYTES = 16_384  # librdkafka's own default is 64 MB
HEARTBEATS_A_SESSION = 15  # librdkafka's own defaults: 3 s of 45 s
CUT_NOTE = "cut="


class Sink(Protocol):
    """What a store does with batches."""

    def check(self, record: msgspec.Struct) -> None:
        """Raise InvalidRecordError for a record that this store could not take."""
        ...

    def write(self, batch: Batch) -> None:
        """Store a batch whole; after a RetryableError it is called again with the same batch."""
        ...

    def counts(self) -> Mapping[str, int]:
        """What it has done since it began, for pipeline-health."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeSettings:
    """Whose messages to read, and how."""

    kafka: KafkaConnection
    cluster: str
    component: str  # sink-clickhouse, sink-prometheus
    instance: str
    group: str
    topics: Sequence[Topic]
    limits: Limits = DEFAULT_LIMITS
    registry: SchemaIds | None = None
    # None: go on after the last commit. Else nothing is ever committed, and each start reads this many seconds back
    # (None: the whole topic): for sinks whose state lives in memory.
    look_back_s: Mapping[str, float | None] | None = None
    # Called once, by the loop, when a sink that looks back has written everything up to the ends of its partitions.
    caught_up: Callable[[], None] | None = None
    health_every_s: float = 5.0
    retry_first_s: float = 0.5
    retry_most_s: float = 30.0
    session_timeout_s: float = 45.0  # After a kill -9 the others of the group wait for so long


def consume(settings: ConsumeSettings, sink: Sink, stop: threading.Event) -> None:
    """Run until `stop` is set; raises what is neither an invalid record nor an outage."""
    _Loop(settings, sink, stop).run()


class _Loop:
    """One life of a sink."""

    def __init__(self, settings: ConsumeSettings, sink: Sink, stop: threading.Event) -> None:
        self._settings, self._sink, self._stop = settings, sink, stop
        self._state = SinkState(log=_logger_of(settings.component))
        self._epoch = uuid.uuid4().hex
        self._by_name = {topic.name: topic for topic in settings.topics}
        self._decoders = {topic.name: Decoder(topic, registry=settings.registry) for topic in settings.topics}
        self._batches = Batches(settings.limits)
        self._owned: set[Place] = set()
        self._next: dict[Place, int] = {}
        self._ended: set[Place] = set()  # Read up to the end at least once
        self._caught_up = False
        self._reported_s = 0.0
        self._backing_off = False
        self._commits = 0  # Sent, and not answered yet
        self._fatal: KafkaError | None = None
        self._consumer = Consumer(self._consumer_settings(), logger=_quiet())
        self._producer = _Reporter(settings, self._state)

    def run(self) -> None:
        """Until stopped; what is gathered by then is written if the store is there, else read again next time."""
        self._consumer.subscribe(
            list(self._by_name), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        try:
            while not self._stop.is_set():
                self._receive(POLL_S)
                for batch in self._batches.due(time.monotonic()):
                    self._deliver(batch)
                self._tell_caught_up()
                self._report()
            for batch in self._batches.due(time.monotonic(), everything=True):
                self._deliver(batch)
        finally:
            self._producer.report(self._epoch, self._all_counts())
            self._producer.close()
            self._close()

    def _close(self) -> None:
        """Leave the group; but not for ever, as a pending commit to a dead broker would have it."""
        closing = threading.Thread(target=self._consumer.close, daemon=True)
        closing.start()
        closing.join(CLOSE_S)

    # Reading

    def _receive(self, timeout_s: float) -> None:
        for message in self._consumer.consume(POLL_MESSAGES, timeout_s):
            if (error := message.error()) is not None and error.code() == KafkaError._PARTITION_EOF:
                self._ended.add((message.topic(), message.partition()))
            elif error is not None:
                self._state.trouble(f"topic {message.topic()}", error.str())
            elif (message.topic(), message.partition()) in self._owned:
                self._state.well("kafka")
                self._gather(message)
        if self._fatal is not None:
            raise KafkaException(self._fatal)

    def _gather(self, message: Message) -> None:
        topic, place = self._by_name[message.topic()], (message.topic(), message.partition())
        offset, value = message.offset(), message.value()
        expected = self._next.get(place)
        if expected is not None and offset > expected and topic.cleanup == "delete":
            self._state.counts["messages_deleted_unread"] += offset - expected
        self._next[place] = offset + 1
        self._state.counts["messages"] += 1
        content = self._content(topic, message)
        self._batches.add(topic, message.partition(), offset, len(value or b""), content, time.monotonic())

    def _content(self, topic: Topic, message: Message) -> msgspec.Struct | Refused | None:
        if message.value() is None and "compact" in topic.cleanup:
            self._state.counts["tombstones"] += 1
            return None
        try:
            record = self._decoders[topic.name](message.value())
            self._sink.check(record)
        except InvalidRecordError as error:
            self._state.counts["dead_letters"] += 1
            return Refused(letter=_letter(message, self._settings.component, str(error)))
        return record

    # Writing

    def _deliver(self, batch: Batch) -> None:
        """Letters, then the store, then the commit; gives up when stopped or when the partition is somebody else's."""
        self._note_cut(batch)
        if (
            self._insist("dead-letters", batch, lambda: self._producer.deliver(batch.letters))
            and self._insist("store", batch, lambda: self._sink.write(batch))
            and self._commit(batch.topic, batch.partition, batch.last + 1)
        ):
            self._state.counts["batches"] += 1

    def _insist(self, part: str, batch: Batch, action: Callable[[], None]) -> bool:
        """Do it, again and again while what it needs is away."""
        delay_s = self._settings.retry_first_s
        while (batch.topic.name, batch.partition) in self._owned:
            try:
                action()
            except RetryableError as error:
                self._state.trouble(part, str(error))
                self._state.counts["retries"] += 1
                if self._stop.is_set():
                    return False
                self._back_off(delay_s)
                delay_s = min(2 * delay_s, self._settings.retry_most_s)
            else:
                self._state.well(part)
                return True
        return False

    def _back_off(self, delay_s: float) -> None:
        """Wait without fetching, but keep the group's membership and the health reports going."""
        self._backing_off = True
        self._consumer.pause(self._consumer.assignment())
        until_s = time.monotonic() + delay_s
        while not self._stop.is_set() and (left_s := until_s - time.monotonic()) > 0:
            self._receive(min(POLL_S, left_s))
            self._report()
        self._backing_off = False
        self._consumer.resume(self._consumer.assignment())

    def _note_cut(self, batch: Batch) -> None:
        """Write down where this batch ends, so that after a crash the same cut is made and its token holds."""
        if batch.topic.spread and batch.records:
            self._commit(batch.topic, batch.partition, batch.first, note=f"{CUT_NOTE}{batch.last}")
            self._await_commits()

    def _commit(self, topic: Topic, partition: int, offset: int, note: str = "") -> bool:
        if self._settings.look_back_s is not None:
            return True
        if (topic.name, partition) not in self._owned:
            return False
        place = TopicPartition(topic.name, partition, offset, **({"metadata": note} if note else {}))
        try:
            self._consumer.commit(offsets=[place], asynchronous=True)
        except KafkaException:
            self._state.counts["commits_failed"] += 1
            return False
        self._commits += 1
        return True

    def _committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        """A commit's answer. One that fails costs nothing but work: what it covers is read and written again."""
        self._commits -= 1
        if error is not None or any(place.error is not None for place in places):
            self._state.counts["commits_failed"] += 1

    def _await_commits(self) -> None:
        """Until the broker has answered, but never long: a synchronous commit would block while it is dead."""
        until_s = time.monotonic() + COMMIT_ANSWER_S
        while self._commits > 0 and not self._stop.is_set() and time.monotonic() < until_s:
            self._receive(COMMIT_POLL_S)

    def _tell_caught_up(self) -> None:
        if self._caught_up or self._settings.caught_up is None or not self._owned or not self._owned <= self._ended:
            return
        for batch in self._batches.due(time.monotonic(), everything=True):
            self._deliver(batch)
        self._caught_up = True
        self._settings.caught_up()

    # Partitions come and go

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._settings.look_back_s is not None:
            partitions = [self._looking_back(consumer, partition) for partition in partitions]
        else:
            self._resume_cuts(consumer, partitions)
        self._owned.update((partition.topic, partition.partition) for partition in partitions)
        consumer.assign(partitions)
        if self._backing_off:
            consumer.pause(partitions)
        for name in {partition.topic for partition in partitions}:
            self._state.well(f"topic {name}")

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        places = [(partition.topic, partition.partition) for partition in partitions]
        self._owned.difference_update(places)
        self._batches.forget(places)
        for place in places:
            self._next.pop(place, None)
            self._ended.discard(place)

    def _resume_cuts(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            committed = consumer.committed(partitions, timeout=BROKER_ANSWER_S)
        except KafkaException:
            return  # Without the notes a repeated batch is cut anew: twice in the raw table, once in the views
        for partition in committed:
            place = (partition.topic, partition.partition)
            if partition.offset >= 0:
                self._next[place] = partition.offset
            note = partition.metadata or ""
            if note.startswith(CUT_NOTE) and note.removeprefix(CUT_NOTE).isdigit():
                self._batches.keep_cut(place, int(note.removeprefix(CUT_NOTE)))

    def _looking_back(self, consumer: Consumer, partition: TopicPartition) -> TopicPartition:
        seconds = (self._settings.look_back_s or {}).get(partition.topic)
        if seconds is None:
            return TopicPartition(partition.topic, partition.partition, OFFSET_BEGINNING)
        since_ms = int((time.time() - seconds) * 1000)
        wanted = TopicPartition(partition.topic, partition.partition, since_ms)
        try:
            return consumer.offsets_for_times([wanted], timeout=BROKER_ANSWER_S)[0]
        except KafkaException:
            return TopicPartition(partition.topic, partition.partition, OFFSET_BEGINNING)

    # Telling

    def _report(self) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s >= self._settings.health_every_s:
            self._reported_s = now_s
            self._producer.report(self._epoch, self._all_counts())
        self._producer.poll()

    def _all_counts(self) -> dict[str, int]:
        counts = {**self._state.counts, **self._sink.counts()}
        lag = self._lag()
        return counts if lag is None else {**counts, "lag": lag}

    def _lag(self) -> int | None:
        """Messages in the log that are not yet read; None while not known, which is not 0."""
        total = 0
        for topic, partition in self._owned:
            try:
                _, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)
            except KafkaException:
                return None
            if high < 0:
                return None
            total += max(0, high - self._next.get((topic, partition), high))
        return total if self._owned else None

    def _complain(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = error
        elif error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION):
            self._state.trouble("kafka", error.str())

    def _consumer_settings(self) -> dict[str, object]:
        return {
            **self._settings.kafka.confluent(),
            "group.id": self._settings.group,
            "client.id": f"{self._settings.component}-{self._settings.instance}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": self._settings.caught_up is not None,
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
            "session.timeout.ms": int(self._settings.session_timeout_s * 1000),
            "heartbeat.interval.ms": int(self._settings.session_timeout_s * 1000 / HEARTBEATS_A_SESSION),
            "topic.metadata.refresh.interval.ms": 10_000,
            "queued.max.messages.kbytes": PREFETCH_KBYTES,
            "error_cb": self._complain,
            "on_commit": self._committed,
        }


class _Reporter:
    """Sends dead-letters, which must arrive, and health reports, of which the next one makes up for a lost one."""

    def __init__(self, settings: ConsumeSettings, state: SinkState) -> None:
        self._settings, self._state = settings, state
        self._letters, self._reports = Encoder(DEAD_LETTERS), Encoder(PIPELINE_HEALTH)
        self._producer = Producer(
            {
                **settings.kafka.confluent(),
                "client.id": f"{settings.component}-{settings.instance}",
                "partitioner": PARTITIONER,
                "enable.idempotence": True,
                "message.timeout.ms": int(BROKER_ANSWER_S * 1000),
            },
            logger=_quiet(),
        )

    def deliver(self, letters: Sequence[DeadLetter]) -> None:
        """Return once the broker has them all; raises RetryableError."""
        if not letters:
            return
        failures: list[str] = []
        try:
            for letter in letters:
                key = f"{letter.topic}/{letter.partition}".encode()
                self._produce(DEAD_LETTERS, key, self._letters, letter, failures.append)
        except (BufferError, KafkaException) as error:
            failures.append(str(error))
        if self._producer.flush(BROKER_ANSWER_S + 1) or failures:
            raise RetryableError(f"not delivered: {failures[0] if failures else 'no answer'}")

    def report(self, epoch: str, counts: Mapping[str, int]) -> None:
        """Send the state; returns at once."""
        record = self._state.report(
            cluster=self._settings.cluster,
            component=self._settings.component,
            instance=self._settings.instance,
            epoch=epoch,
            us=time.time_ns() // 1000,
            counts=counts,
        )
        key = f"{self._settings.component}/{self._settings.instance}".encode()
        try:
            self._produce(PIPELINE_HEALTH, key, self._reports, record, lambda _error: None)
        except (BufferError, KafkaException):
            self._state.counts["reports_dropped"] += 1

    def poll(self) -> None:
        """Serve the callbacks."""
        self._producer.poll(0)

    def close(self) -> None:
        """Give the last report a moment."""
        self._producer.flush(1.0)

    def _produce(
        self,
        topic: Topic,
        key: bytes,
        encoder: Encoder,
        record: DeadLetter | PipelineHealth,
        failed: Callable[[str], None],
    ) -> None:
        def told(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self._state.well("kafka")
            else:
                failed(error.str())

        self._producer.produce(
            topic.name, key=key, value=encoder(record), headers=dict(encoder.headers), on_delivery=told
        )


def _letter(message: Message, component: str, reason: str) -> DeadLetter:
    time_type, time_ms = message.timestamp()
    return letter_of(
        component=component,
        reason=reason,
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=message.headers() or [],
        broker_time_ms=None if time_type == TIMESTAMP_NOT_AVAILABLE else time_ms,
    )


def _logger_of(component: str) -> Callable[[HealthStatus, str, str], None]:
    log = structlog.get_logger().bind(component=component)

    def tell(status: HealthStatus, part: str, message: str) -> None:
        (log.info if status is HealthStatus.OK else log.warning)(message, part=part, status=status.value)

    return tell


def _quiet() -> logging.Logger:
    """librdkafka repeats itself fifteen times a second while a broker is away; we tell each change of state once."""
    logger = logging.getLogger("sinks.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
