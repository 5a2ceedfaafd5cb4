"""One node's records of one flush, cut into one slice per job."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.contract.calls import COLUMNS, Column
from streams.contract.header import Gap
from streams.contract.inputs import NcclThroughput, NicCounters
from streams.contract.rosters import roster_bytes
from streams.contract.series import MISSING, PackedSeries
from streams.contract.slices import JobSlice
from streams.core.cut import NOWHERE, Cut, Cuts, Target, compile_cut, cut_all, moving_rows, together
from streams.core.job_keys import process_id
from streams.core.layout import JobLayout, holder_jobs, job_layout
from streams.core.pods import PodList
from streams.core.port_features import PORT_FEATURE_NAMES, name_map, port_target

_VALUE = np.dtype("<i8")
CACHED_PATTERNS = 128  # Per node; which rows move comes back soon or never
ROW_BYTES = _VALUE.itemsize * COLUMNS
Pattern = tuple[bytes, bytes, bytes]
Calls = tuple[NDArray[np.int64], NDArray[np.int64], list[int]]  # Order of rows, their new communicators, jobs' ends
Key = TypeVar("Key", bytes, Pattern)
Plan = TypeVar("Plan", list[Cut], Calls)


@dataclass(slots=True, kw_only=True, eq=False)
class Latest:
    """What the flush before used: compared with the next one's, it need not be hashed or made again."""

    pattern: tuple[Pattern, Pattern] | None = None
    cuts: Cuts | None = None
    calls: NcclThroughput | None = None
    same_callers: bool = False
    gaps: list[Gap] = field(default_factory=list)
    rosters: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeLayout:
    """Everything that the node's slices share until somebody comes or goes."""

    nic: NicCounters
    nccl: NcclThroughput | None
    pods: PodList
    jobs: dict[str, JobLayout]
    seen: tuple[str, ...]  # Jobs that hold RDMA objects or communicators now
    all_seen: bool  # No job is here only by memory
    owner: NDArray[np.int64]  # Communicator of the nccl record -> job, by its place in `jobs`; beyond: nobody's
    communicator: NDArray[np.int64]  # Communicator of the nccl record -> of that job's slice
    cached_ports: dict[Pattern, list[Cut]] = field(default_factory=dict)
    cached_holders: dict[Pattern, list[Cut]] = field(default_factory=dict)
    cached_calls: dict[bytes, Calls] = field(default_factory=dict)
    latest: Latest = field(default_factory=Latest)

    def cuts(self, nic: NicCounters) -> Cuts:
        """Every job's cut of the ports' counters and of the holders' features below them."""
        pattern = _pattern(nic.counters), _pattern(nic.features)
        latest = self.latest
        if latest.cuts is not None and latest.pattern == pattern:
            return latest.cuts
        ports, holders = self._port_cuts(nic, pattern[0]), self._holder_cuts(nic, pattern[1])
        cuts = together(list(zip(ports, holders, strict=True)), second_from=len(nic.counters.moving_ids) // 4)
        latest.pattern, latest.cuts = pattern, cuts
        return cuts

    def has_callers(self, calls: NcclThroughput | None) -> bool:
        """True where a flush lists the processes and communicators that the layout was compiled from."""
        before, latest = self.nccl, self.latest
        if before is None or calls is None:
            return before is calls
        if latest.calls is not calls:
            latest.calls = calls
            latest.same_callers = before.communicators == calls.communicators and before.processes == calls.processes
        return latest.same_callers

    def rosters(self, gaps: list[Gap]) -> list[bytes]:
        """Every job's roster with what is not seen now."""
        latest = self.latest
        if not latest.rosters or latest.gaps != gaps:
            latest.gaps = gaps
            latest.rosters = [
                roster_bytes(msgspec.structs.replace(job.roster, gaps=gaps)) for job in self.jobs.values()
            ]
        return latest.rosters

    def calls(self, communicator: NDArray[np.int64]) -> Calls:
        """Which rows are whose, by the rows' communicators: a program's steps repeat."""
        pattern = communicator.tobytes()
        calls = self.cached_calls.get(pattern)
        if calls is None:
            owner = self.owner[communicator]
            order = owner.argsort(kind="stable")
            counts = np.bincount(owner, minlength=len(self.jobs))[: len(self.jobs)]
            calls = order, self.communicator[communicator[order]], [0, *(counts.cumsum() * ROW_BYTES).tolist()]
            _remember(self.cached_calls, pattern, calls)
        return calls

    def _port_cuts(self, nic: NicCounters, pattern: Pattern) -> list[Cut]:
        packed = nic.counters
        cuts = self.cached_ports.get(pattern)
        if cuts is None:
            mapping = name_map(tuple(nic.counter_names))
            cuts = [
                compile_cut(packed, port_target(packed, mapping, job.port), keep_zeros=True)
                for job in self.jobs.values()
            ]
            _remember(self.cached_ports, pattern, cuts)
        return cuts

    def _holder_cuts(self, nic: NicCounters, pattern: Pattern) -> list[Cut]:
        packed = nic.features
        cuts = self.cached_holders.get(pattern)
        if cuts is None:
            names = len(nic.feature_names)
            cuts = [
                compile_cut(packed, _holder_target(job.holding, names), keep_zeros=False) for job in self.jobs.values()
            ]
            _remember(self.cached_holders, pattern, cuts)
        return cuts


def still_holds(layout: NodeLayout, nic: NicCounters, pods: PodList) -> bool:
    """True where the names in a nic record are those that the layout was compiled from."""
    before = layout.nic
    return (
        layout.pods is pods
        and before.holdings == nic.holdings
        and before.holders == nic.holders
        and before.devices == nic.devices
        and before.ports == nic.ports
        and before.feature_names == nic.feature_names
        and before.counter_names == nic.counter_names
        and before.agent_epoch == nic.agent_epoch
        and before.bytes_rung == nic.bytes_rung
        and before.source == nic.source
    )


def compile_layout(
    nic: NicCounters,
    nccl: NcclThroughput | None,
    pods: PodList,
    *,
    process_jobs: dict[str, str],
    held_by: dict[str, str],
    remembered: frozenset[str],
) -> NodeLayout:
    """The layouts of every job that is on the node now or was lately."""
    owners = holder_jobs(nic, pods, held_by)
    of_process = [process_jobs.get(process_id(process)) for process in nccl.processes] if nccl is not None else []
    calling = {of_process[member.process] for member in nccl.communicators} if nccl is not None else set()
    holding = {job for job in owners if job is not None}
    known = remembered | {job for job in of_process if job is not None} | _training(holding, pods)
    seen = {job for job in calling | (holding & known) if job is not None}
    jobs = {
        job: job_layout(job, nic, nccl, pods, jobs=owners, mine=[owner == job for owner in of_process])
        for job in sorted(remembered | seen)
    }
    members = len(nccl.communicators) if nccl is not None else 0
    owner, communicator = np.full(members, len(jobs), np.int64), np.zeros(members, np.int64)
    for number, job in enumerate(jobs.values()):
        own = job.communicator >= 0
        owner[own], communicator[own] = number, job.communicator[own]
    return NodeLayout(
        nic=nic,
        nccl=nccl,
        pods=pods,
        jobs=jobs,
        seen=tuple(sorted(seen)),
        all_seen=seen == set(jobs),
        owner=owner,
        communicator=communicator,
    )


def slices(layout: NodeLayout, nic: NicCounters, nccl: NcclThroughput | None) -> list[JobSlice]:
    """One slice per job of the layout. In holders' rows what stood still at 0 is left out; absent means 0 there."""
    moving = moving_rows(nic.ticks, nic.counters, nic.features)
    missing = len(moving) > 0 and int(moving.min()) == MISSING
    features = cut_all(layout.cuts(nic), moving, missing=missing)
    rosters = layout.rosters(nic.gaps + nccl.gaps if nccl is not None else nic.gaps)
    rows = _own_rows(nccl, layout) if nccl is not None and nccl.rows else [b""] * len(features)
    return [
        msgspec.structs.replace(
            job.blank,
            seq=nic.seq,
            first_tick=nic.first_tick,
            ticks=nic.ticks,
            nccl_silent=nccl is None,
            roster=roster,
            rows=own_rows,
            features=own_features,
        )
        for job, roster, own_rows, own_features in zip(layout.jobs.values(), rosters, rows, features, strict=True)
    ]


def silent_slices(layout: NodeLayout, *, first_tick: int, through_tick: int) -> list[JobSlice]:
    """What the node's jobs are told when it falls silent."""
    return [
        msgspec.structs.replace(
            job.blank,
            first_tick=first_tick,
            ticks=through_tick - first_tick + 1,
            nic_silent=True,
            nccl_silent=True,
        )
        for job in layout.jobs.values()
    ]


def _own_rows(nccl: NcclThroughput, layout: NodeLayout) -> list[bytes]:
    """Each job's calls, in the record's order."""
    rows = np.frombuffer(nccl.rows, _VALUE).reshape(-1, COLUMNS)
    order, communicators, ends = layout.calls(rows[:, Column.COMMUNICATOR])
    own = rows[order]
    own[:, Column.COMMUNICATOR] = communicators
    raw = own.tobytes()
    return [raw[begin:end] for begin, end in pairwise(ends)]


def _pattern(packed: PackedSeries) -> Pattern:
    return packed.moving_ids, packed.steady_ids, packed.steady_values


def _training(jobs: set[str], pods: PodList) -> set[str]:
    """Jobs by their owner chain that have GPUs: they are told of even where no NCCL call is seen."""
    return {
        pod.job.key
        for pod in pods.pods.values()
        if pod.job is not None and pod.job.key in jobs and (pod.gpus or pod.job.gpus_total)
    }


def _remember(cache: dict[Key, Plan], pattern: Key, plan: Plan) -> None:
    if len(cache) >= CACHED_PATTERNS:
        cache.clear()
    cache[pattern] = plan


def _holder_target(entity: NDArray[np.int64], names: int) -> Target:
    new_id = np.where(entity[:, None] >= 0, entity[:, None] << 16 | len(PORT_FEATURE_NAMES) + np.arange(names), NOWHERE)
    return Target(names=names, new_id=new_id.ravel())
