"""The detector's outer shape: three steps, each alone for the stream app, or all in one process for a replay."""

from __future__ import annotations

import msgspec

from streams.contract.findings import Episode, Incident, JobState
from streams.contract.inputs import NcclThroughput, NicCounters, NodePods
from streams.contract.slices import JobSlice
from streams.core.correlate import Correlate
from streams.core.join import Join
from streams.core.judge import Judge
from streams.core.settings import CoreSettings, CorrelateSettings, JoinSettings, JudgeSettings

__all__ = ["Core", "CoreSettings", "Correlate", "CorrelateSettings", "Finding", "Join", "JoinSettings", "Judge"]
__all__ += ["JudgeSettings"]

Finding = Episode | JobState | Incident
Input = NicCounters | NcclThroughput | NodePods
FORMAT = 1


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All three steps' states."""

    format: int = FORMAT
    joins: list[bytes]
    judge: bytes
    correlate: bytes


class Core:
    """Everything in one process. Findings come in the order in which they can be known."""

    def __init__(self, settings: CoreSettings, partitions: int) -> None:
        self._settings = settings
        self._joins = [Join(settings.join, partition) for partition in range(partitions)]
        self._judge = Judge(settings.judge, partitions)
        self._correlate = Correlate(settings.correlate)

    @property
    def counts(self) -> dict[str, int]:
        """What was dropped or forced, by reason, over all steps."""
        total: dict[str, int] = {}
        for counts in [*(join.counts for join in self._joins), self._judge.counts]:
            for reason, number in counts.items():
                total[reason] = total.get(reason, 0) + number
        return total

    @property
    def closed_through(self) -> int:
        """The last tick that has been judged."""
        return self._judge.closed_through

    def apply(self, topic: str, partition: int, record: Input) -> list[Finding]:
        """Take the next record of one topic-partition; `topic` is implied by the record's type and only checked."""
        expected = _TOPICS[type(record)]
        if topic != expected:
            raise ValueError(f"a {type(record).__name__} does not belong to {topic}, but to {expected}")
        out: list[Finding] = []
        for piece in self._joins[partition].apply(record):
            out.extend(self._follow(piece))
        return out

    def snapshot(self) -> bytes:
        """The whole state; `restore` goes on from it as if nothing had happened."""
        return msgspec.msgpack.encode(
            Snapshot(
                joins=[join.snapshot() for join in self._joins],
                judge=self._judge.snapshot(),
                correlate=self._correlate.snapshot(),
            )
        )

    @classmethod
    def restore(cls, settings: CoreSettings, snapshot: bytes) -> Core:
        """A `Core` in the state that `snapshot` returned."""
        state = msgspec.msgpack.decode(snapshot, type=Snapshot)
        core = cls(settings, len(state.joins))
        core._joins = [Join.restore(settings.join, number, state.joins[number]) for number in range(len(state.joins))]
        core._judge = Judge.restore(settings.judge, len(state.joins), state.judge)
        core._correlate = Correlate.restore(settings.correlate, state.correlate)
        return core

    def _follow(self, piece: JobSlice) -> list[Finding]:
        out: list[Finding] = []
        for finding in self._judge.apply(piece):
            out.append(finding)
            out.extend(self._correlate.apply(finding))
        return out


_TOPICS: dict[type, str] = {
    NicCounters: "nic-counters",
    NcclThroughput: "nccl-throughput",
    NodePods: "node-pods",
}
