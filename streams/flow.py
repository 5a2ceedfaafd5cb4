"""Carries messages through the three steps: bytes in, bytes out, one state per step and partition; no broker here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from streams.contract.errors import InvalidRecordError, RetryableError
from streams.contract.findings import Episode, Incident, JobState
from streams.contract.plumbing import DeadLetter
from streams.contract.slices import JobSlice
from streams.contract.topics import (
    DEAD_LETTERS,
    EPISODES,
    INCIDENTS,
    INPUTS,
    JOB_SLICES,
    JOB_STATES,
    Topic,
)
from streams.contract.wire import Decoder, Encoder, SchemaIds
from streams.dead_letters import dead_letter, dead_letter_key
from streams.kafka_log import LogMessage
from streams.metrics import StreamMetrics

log = logging.getLogger(__name__)

JOIN, JUDGE, CORRELATE = "join", "judge", "correlate"
STEP_OF = {**{topic.name: JOIN for topic in INPUTS}, JOB_SLICES.name: JUDGE}
STEP_OF |= {EPISODES.name: CORRELATE, JOB_STATES.name: CORRELATE}
CONSUMED = (*INPUTS, JOB_SLICES, EPISODES, JOB_STATES)
PRODUCED = (JOB_SLICES, EPISODES, JOB_STATES, INCIDENTS, DEAD_LETTERS)


class Step(Protocol):
    """One step of the core over one partition: records in, records out."""

    @property
    def counts(self) -> Mapping[str, int]:
        """What it counts of what it could not use."""
        ...

    def apply(self, record: msgspec.Struct, /) -> Sequence[msgspec.Struct]:
        """What follows from one more record; raises InvalidRecordError where it cannot be one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Makers:
    """How a step's state begins, cold."""

    join: Callable[[int], Step]  # Given the input partition
    judge: Callable[[int], Step]  # Given the slices' partition
    correlate: Callable[[], Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to send; `partition` None: where the key's hash says."""

    topic: str
    key: bytes
    value: bytes
    partition: int | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)


class Flow:
    """The steps of the partitions that one worker holds. In memory only: a new owner begins cold."""

    def __init__(
        self,
        makers: Makers,
        *,
        partitions: int,
        metrics: StreamMetrics,
        registry: SchemaIds | None = None,
        registered_ids: Mapping[str, int] | None = None,
    ) -> None:
        self._makers = makers
        self._partitions = partitions
        self._metrics = metrics
        ids = registered_ids or {}
        self._decoders = {topic.name: Decoder(topic, registry=registry) for topic in CONSUMED}
        self._encoders = {t.name: Encoder(t, registered_id=ids.get(t.name)) for t in PRODUCED}
        self.failures = 0  # Records that upset a step: a fault of ours, not of the record
        self._steps: dict[tuple[str, int], Step] = {}
        self._next: dict[tuple[str, int], int] = {}

    def take(self, message: LogMessage) -> list[Outgoing]:
        """What one message leads to; a message that cannot be a record leads to a dead letter, never to an error.

        Raises RetryableError, having changed nothing, while a registry that must name its schema is away.
        """
        if message.offset < self._next.get((message.topic, message.partition), 0):
            self._metrics.repeated.labels(message.topic).inc()
            return []
        began = time.perf_counter()
        step_name = STEP_OF[message.topic]
        outgoing = self._applied(message, step_name)
        self._next[message.topic, message.partition] = message.offset + 1
        self._metrics.apply_s.labels(step_name).observe(time.perf_counter() - began)
        return outgoing

    def _applied(self, message: LogMessage, step_name: str) -> list[Outgoing]:
        try:
            record = self._decoders[message.topic](message.value)
            results = self._step(step_name, message.partition).apply(record)
            outgoing = [out for result in results for out in self._encoded(result)]
        except RetryableError:
            raise
        except InvalidRecordError as error:
            return [self._refused(message, str(error))]
        except Exception as error:  # A record that upsets the core must not stop all others for ever
            self.failures += 1
            log.exception("%s could not take offset %d of %s", step_name, message.offset, message.topic)
            return [self._refused(message, f"{step_name} failed: {type(error).__name__}: {error}")]
        self._metrics.applied.labels(message.topic).inc()
        return outgoing

    def is_cold(self, topic: str, partition: int) -> bool:
        """True until the step that reads this topic has taken a message of this partition."""
        return (STEP_OF[topic], partition) not in self._steps

    def hold(self, places: Iterable[tuple[str, int]]) -> None:
        """Forget the state of partitions that are not among these (topic, partition): somebody else goes on there."""
        held = {(STEP_OF[topic], partition) for topic, partition in places if topic in STEP_OF}
        for gone in self._steps.keys() - held:
            del self._steps[gone]
        for topic, partition in list(self._next):
            if (STEP_OF[topic], partition) not in held:
                del self._next[topic, partition]

    def counts(self) -> dict[str, dict[str, int]]:
        """What the steps count, summed over partitions."""
        sums: dict[str, dict[str, int]] = {}
        for (name, _), step in self._steps.items():
            counted = sums.setdefault(name, {})
            for what, number in step.counts.items():
                counted[what] = counted.get(what, 0) + number
        return sums

    def _step(self, name: str, partition: int) -> Step:
        key = (name, partition)
        if key not in self._steps:
            makers = {JOIN: self._makers.join, JUDGE: self._makers.judge}
            self._steps[key] = makers[name](partition) if name in makers else self._makers.correlate()
            self._metrics.cold_starts.labels(name).inc()
        return self._steps[key]

    def _encoded(self, record: msgspec.Struct) -> list[Outgoing]:
        topic, key = address(record)
        encode = self._encoders[topic.name]
        value, headers = encode(record), encode.headers
        if isinstance(record, JobSlice) and record.progress is not None:
            return [
                Outgoing(topic=topic.name, key=key, value=value, partition=number, headers=headers)
                for number in range(self._partitions)
            ]
        return [Outgoing(topic=topic.name, key=key, value=value, headers=headers)]

    def _refused(self, message: LogMessage, reason: str) -> Outgoing:
        self._metrics.dead_letters.labels(message.topic).inc()
        return self._encoded(dead_letter(message, reason))[0]


def address(record: msgspec.Struct) -> tuple[Topic, bytes]:
    """The topic and key under which a step's result travels."""
    match record:
        case JobSlice():
            return JOB_SLICES, record.job.encode()
        case Episode():
            return EPISODES, record.episode_id.encode()
        case JobState():
            return JOB_STATES, record.job.encode()
        case Incident():
            return INCIDENTS, record.incident_id.encode()
        case DeadLetter():
            return DEAD_LETTERS, dead_letter_key(record)
    raise TypeError(f"no topic carries a {type(record).__name__}")
