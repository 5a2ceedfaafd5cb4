"""One node's records of one flush, cut into one slice per job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.contract.calls import COLUMNS, Column
from streams.contract.inputs import NcclThroughput, NicCounters
from streams.contract.series import MISSING, PackedSeries
from streams.contract.slices import JobSlice
from streams.core.cut import NOWHERE, Cut, Target, compile_cut, cut, moving_rows
from streams.core.job_keys import process_id
from streams.core.layout import JobLayout, holder_jobs, job_layout
from streams.core.pods import PodList
from streams.core.port_features import PORT_FEATURE_NAMES, name_map, port_target

_VALUE = np.dtype("<i8")
CACHED_PATTERNS = 128  # Per node; which rows move comes back soon or never
Pattern = tuple[bytes, bytes, bytes]
Plan = TypeVar("Plan")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeLayout:
    """Everything that the node's slices share until somebody comes or goes."""

    nic: NicCounters
    nccl: NcclThroughput | None
    pods: PodList
    jobs: dict[str, JobLayout]
    seen: tuple[str, ...]  # Jobs that hold RDMA objects or communicators now
    all_seen: bool  # No job is here only by memory
    cached_ports: dict[Pattern, list[Cut]] = field(default_factory=dict)
    cached_holders: dict[Pattern, list[Cut]] = field(default_factory=dict)

    def port_cuts(self, nic: NicCounters) -> list[Cut]:
        """Each job's cut of the ports' counters."""
        packed = nic.counters
        pattern = (packed.moving_ids, packed.steady_ids, packed.steady_values)
        cuts = self.cached_ports.get(pattern)
        if cuts is None:
            mapping = name_map(tuple(nic.counter_names))
            cuts = [
                compile_cut(packed, port_target(packed, mapping, job.port), keep_zeros=True)
                for job in self.jobs.values()
            ]
            _remember(self.cached_ports, pattern, cuts)
        return cuts

    def holder_cuts(self, nic: NicCounters) -> list[Cut]:
        """Each job's cut of the holders' features: its own and its suspects'."""
        packed = nic.features
        pattern = (packed.moving_ids, packed.steady_ids, packed.steady_values)
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
        and before.gaps == nic.gaps
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
    return NodeLayout(nic=nic, nccl=nccl, pods=pods, jobs=jobs, seen=tuple(sorted(seen)), all_seen=seen == set(jobs))


def slices(layout: NodeLayout, nic: NicCounters, nccl: NcclThroughput | None) -> list[JobSlice]:
    """One slice per job of the layout. In holders' rows what stood still at 0 is left out; absent means 0 there."""
    counters, holders = moving_rows(nic.counters, nic.ticks), moving_rows(nic.features, nic.ticks)
    gaps_counters = len(counters) > 0 and int(counters.min()) == MISSING
    gaps_holders = len(holders) > 0 and int(holders.min()) == MISSING
    port_cuts = layout.port_cuts(nic)
    holder_cuts = layout.holder_cuts(nic)
    rows = None if nccl is None else np.frombuffer(nccl.rows, _VALUE).reshape(-1, COLUMNS)
    out = []
    for number, job in enumerate(layout.jobs.values()):
        ports = cut(port_cuts[number], counters, missing=gaps_counters)
        held = cut(holder_cuts[number], holders, missing=gaps_holders)
        out.append(
            msgspec.structs.replace(
                job.blank,
                seq=nic.seq,
                first_tick=nic.first_tick,
                ticks=nic.ticks,
                nccl_silent=rows is None,
                rows=b"" if rows is None or not len(rows) else _own_rows(rows, job.communicator),
                features=PackedSeries(
                    moving_ids=ports.moving_ids + held.moving_ids,
                    moving_values=ports.moving_values + held.moving_values,
                    steady_ids=ports.steady_ids + held.steady_ids,
                    steady_values=ports.steady_values + held.steady_values,
                ),
            )
        )
    return out


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


def _own_rows(rows: NDArray[np.int64], communicator: NDArray[np.int64]) -> bytes:
    index = communicator[rows[:, Column.COMMUNICATOR]]
    own = index >= 0
    chosen = rows[own]
    chosen[:, Column.COMMUNICATOR] = index[own]
    return chosen.tobytes()


def same_calls(before: NcclThroughput, now: NcclThroughput) -> bool:
    """True where two flushes list the same processes, communicators and gaps."""
    return before.communicators == now.communicators and before.processes == now.processes and before.gaps == now.gaps


def _training(jobs: set[str], pods: PodList) -> set[str]:
    """Jobs by their owner chain that have GPUs: they are told of even where no NCCL call is seen."""
    return {
        pod.job.key
        for pod in pods.pods.values()
        if pod.job is not None and pod.job.key in jobs and (pod.gpus or pod.job.gpus_total)
    }


def _remember(cache: dict[Pattern, Plan], pattern: Pattern, plan: Plan) -> None:
    if len(cache) >= CACHED_PATTERNS:
        cache.clear()
    cache[pattern] = plan


def _holder_target(entity: NDArray[np.int64], names: int) -> Target:
    new_id = np.where(entity[:, None] >= 0, entity[:, None] << 16 | len(PORT_FEATURE_NAMES) + np.arange(names), NOWHERE)
    return Target(names=names, new_id=new_id.ravel())
