"""Messages of one partition gathered into batches, cut on offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from streams.contract.plumbing import DeadLetter
from streams.contract.topics import Topic

Place = tuple[str, int]  # Topic and partition
CUT_PATIENCE_S = 60.0  # A noted cut whose last message has been deleted from the log meanwhile is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A message that is no record, as the letter that says why."""

    letter: DeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All messages of one partition from `first` to `last`: records, and letters for those that were none."""

    topic: Topic
    partition: int
    first: int
    last: int
    offsets: Sequence[int]
    records: Sequence[msgspec.Struct]
    letters: Sequence[DeadLetter]

    @property
    def token(self) -> str:
        """Names the cut: the same messages, cut alike, always give the same token."""
        return f"{self.topic.name}/{self.partition}/{self.first}-{self.last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a partition's batch is due: whichever comes first."""

    messages: int = 5_000
    size_bytes: int = 8_000_000
    total_bytes: int = 64_000_000  # Over all partitions: the bound of the sink's memory
    sample_linger_s: float = 5.0  # Few large inserts: ClickHouse merges what it gets
    finding_linger_s: float = 0.5  # People wait for these

    def linger_s(self, topic: Topic) -> float:
        """How long the first message of a batch may wait."""
        return self.sample_linger_s if topic.spread else self.finding_linger_s


DEFAULT_LIMITS = Limits()


@dataclass(slots=True)
class _Open:
    topic: Topic
    partition: int
    first: int
    began_s: float
    last: int
    messages: int = 0
    size_bytes: int = 0
    offsets: list[int] = field(default_factory=list)
    records: list[msgspec.Struct] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)


class Batches:
    """The batches that are being filled, one for each partition."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[Place, _Open] = {}
        self._cuts: dict[Place, int] = {}
        self._ready: list[Batch] = []  # Cut as in an earlier life, with later messages already behind them

    @property
    def size_bytes(self) -> int:
        """The bytes of all messages held."""
        return sum(batch.size_bytes for batch in self._open.values())

    def add(
        self,
        topic: Topic,
        partition: int,
        offset: int,
        size_bytes: int,
        content: msgspec.Struct | Refused | None,
        now_s: float,
    ) -> None:
        """Add the next message of a partition: a record, a refusal, or nothing to store (a tombstone)."""
        place = (topic.name, partition)
        if place in self._open and offset > self._cuts.get(place, offset):
            self._ready.append(self._take(place))
        batch = self._open.get(place)
        if batch is None:
            batch = self._open[place] = _Open(topic, partition, offset, now_s, offset)
        batch.last = offset
        batch.size_bytes += size_bytes
        batch.messages += 1
        if isinstance(content, Refused):
            batch.letters.append(content.letter)
        elif content is not None:
            batch.offsets.append(offset)
            batch.records.append(content)

    def keep_cut(self, place: Place, last: int) -> None:
        """Cut this partition's next batch exactly after `last`, as an earlier life did before it was interrupted."""
        self._cuts[place] = last

    def due(self, now_s: float, *, everything: bool = False) -> list[Batch]:
        """Take out the batches that are full or old enough, or all of them."""
        everything = everything or self.size_bytes > self._limits.total_bytes
        places = [place for place, batch in self._open.items() if everything or self._is_due(place, batch, now_s)]
        ready, self._ready = self._ready, []
        return ready + [self._take(place) for place in places]

    def forget(self, places: Sequence[Place]) -> None:
        """Drop partitions that belong to somebody else now; what was not committed is read again there."""
        for place in places:
            self._open.pop(place, None)
            self._cuts.pop(place, None)
        self._ready = [batch for batch in self._ready if (batch.topic.name, batch.partition) not in places]

    def _is_due(self, place: Place, batch: _Open, now_s: float) -> bool:
        waited_s = now_s - batch.began_s
        if (cut := self._cuts.get(place)) is not None:
            return batch.last >= cut or waited_s >= CUT_PATIENCE_S
        return (
            batch.messages >= self._limits.messages
            or batch.size_bytes >= self._limits.size_bytes
            or waited_s >= self._limits.linger_s(batch.topic)
        )

    def _take(self, place: Place) -> Batch:
        batch = self._open.pop(place)
        self._cuts.pop(place, None)
        return Batch(
            topic=batch.topic,
            partition=batch.partition,
            first=batch.first,
            last=batch.last,
            offsets=batch.offsets,
            records=batch.records,
            letters=batch.letters,
        )
