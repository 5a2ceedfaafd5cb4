"""A core small enough to foresee: one slice per node record, one episode per tenth slice, one incident per episode."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streams.contract.errors import InvalidRecordError
from streams.contract.findings import Episode, Incident, JobState
from streams.contract.inputs import NcclThroughput, NicCounters, NodePods
from streams.contract.slices import JobSlice, Progress
from streams.flow import Makers


class FakeJoin:
    def __init__(self, partition: int) -> None:
        self._partition = partition
        self.counts = {"late_ticks": 0}

    def apply(self, record: msgspec.Struct, /) -> Sequence[msgspec.Struct]:
        assert isinstance(record, NicCounters | NcclThroughput | NodePods)
        if isinstance(record, NicCounters) and record.watcher_clock is not None:
            progress = Progress(input_partition=self._partition, through_tick=record.watcher_clock.tick)
            return [JobSlice(cluster=record.cluster, job="", progress=progress)]
        if not isinstance(record, NicCounters):
            self.counts["late_ticks"] += 1
            return []
        return [
            JobSlice(
                cluster=record.cluster,
                job=f"job-of-{record.node}",
                node=record.node,
                seq=record.seq,
                first_tick=record.first_tick,
                ticks=record.ticks,
            )
        ]


class FakeJudge:
    def __init__(self) -> None:
        self.counts: dict[str, int] = {"slices": 0, "progress": 0}

    def apply(self, record: msgspec.Struct, /) -> Sequence[msgspec.Struct]:
        assert isinstance(record, JobSlice)
        self.counts["progress" if record.progress else "slices"] += 1
        if record.progress or record.seq % 10:
            return []
        if record.node == "bad":
            raise InvalidRecordError("the node is bad")
        if record.node == "worse":
            raise ZeroDivisionError("the node is worse")
        return [
            Episode(
                episode_id=f"{record.node}-{record.seq}",
                revision=1,
                cluster=record.cluster,
                job=record.job,
                job_epoch=0,
                alarm_tick=record.first_tick,
                onset_tick=record.first_tick,
                decided_tick=record.first_tick,
                as_of_tick=record.first_tick,
                baseline_us=1,
                slowed_us=2,
                iterations=3,
                loss_e4=5000,
                loss_low_e4=4000,
                loss_high_e4=6000,
                timing_source="enqueue",
            ),
            JobState(cluster=record.cluster, job=record.job, job_epoch=0, tick=record.first_tick),
        ]


class FakeCorrelate:
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def apply(self, record: msgspec.Struct, /) -> Sequence[msgspec.Struct]:
        if not isinstance(record, Episode):
            return []
        return [
            Incident(
                incident_id=record.episode_id,
                revision=record.revision,
                cluster=record.cluster,
                onset_tick=record.onset_tick,
                decided_tick=record.decided_tick,
                as_of_tick=record.as_of_tick,
            )
        ]


def fake_makers() -> Makers:
    return Makers(join=FakeJoin, judge=lambda _partition: FakeJudge(), correlate=FakeCorrelate)
