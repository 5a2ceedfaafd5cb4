"""One node's records of one flush, cut into one slice per job."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.contract import features
from streams.contract.calls import Column, pack_rows, unpack_rows
from streams.contract.header import Gap
from streams.contract.inputs import NcclThroughput, NicCounters
from streams.contract.series import MISSING, Series, pack, unpack
from streams.contract.slices import JobSlice
from streams.core.job_keys import process_id
from streams.core.layout import JobLayout, holder_jobs, job_layout
from streams.core.pods import PodList
from streams.core.port_features import name_map, port_features

PORT_FEATURE_NAMES = list(features.PORT_FEATURES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeLayout:
    """Everything that the node's slices share until somebody comes or goes."""

    nic: NicCounters
    nccl: NcclThroughput | None
    pods: PodList
    jobs: dict[str, JobLayout]
    seen: tuple[str, ...]  # Jobs that hold RDMA objects or communicators now


def still_holds(layout: NodeLayout, nic: NicCounters, nccl: NcclThroughput | None, pods: PodList) -> bool:
    """True where the names in the records are those that the layout was compiled from."""
    before, calls = layout.nic, layout.nccl
    return (
        layout.pods is pods
        and before.holdings == nic.holdings
        and before.holders == nic.holders
        and before.devices == nic.devices
        and before.ports == nic.ports
        and before.feature_names == nic.feature_names
        and before.agent_epoch == nic.agent_epoch
        and before.bytes_rung == nic.bytes_rung
        and before.source == nic.source
        and (calls is None) == (nccl is None)
        and (calls is None or nccl is None or _same_calls(calls, nccl))
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
    return NodeLayout(nic=nic, nccl=nccl, pods=pods, jobs=jobs, seen=tuple(sorted(seen)))


def slices(layout: NodeLayout, nic: NicCounters, nccl: NcclThroughput | None) -> list[JobSlice]:
    """One slice per job of the layout. In holders' rows what stood still at 0 is left out; absent means 0 there."""
    raw = unpack(nic.counters, ticks=nic.ticks, entities=len(nic.ports), names=len(nic.counter_names))
    of_ports = port_features(raw, name_map(tuple(nic.counter_names)))
    holdings = len(nic.holdings) // 4
    held = unpack(nic.features, ticks=nic.ticks, entities=holdings, names=len(nic.feature_names))
    held = _moved(held)
    rows = unpack_rows(nccl.rows, communicators=len(nccl.communicators), ticks=nccl.ticks) if nccl is not None else None
    gaps = nic.gaps + nccl.gaps if nccl is not None else nic.gaps
    return [_slice(job, nic, rows, of_ports, held, gaps) for job in layout.jobs.values()]


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


def _slice(
    job: JobLayout,
    nic: NicCounters,
    rows: NDArray[np.int64] | None,
    of_ports: Series,
    held: Series,
    gaps: list[Gap],
) -> JobSlice:
    return msgspec.structs.replace(
        job.blank,
        seq=nic.seq,
        first_tick=nic.first_tick,
        ticks=nic.ticks,
        nccl_silent=rows is None,
        rows=b"" if rows is None else _own_rows(rows, job.communicator),
        job_features=pack(_summed(_chosen(held, job.own_port), names=len(nic.feature_names))),
        port_feature_names=PORT_FEATURE_NAMES,
        port_features=pack(_chosen(of_ports, job.port)),
        suspect_features=pack(_chosen(held, job.suspect)),
        gaps=gaps,
    )


def _own_rows(rows: NDArray[np.int64], communicator: NDArray[np.int64]) -> bytes:
    if not len(rows):
        return b""
    index = communicator[rows[:, Column.COMMUNICATOR]]
    own = index >= 0
    chosen = rows[own]
    chosen[:, Column.COMMUNICATOR] = index[own]
    return pack_rows(chosen)


def _moved(series: Series) -> Series:
    kept = series.values.any(axis=1)
    return Series(entity=series.entity[kept], name=series.name[kept], values=series.values[kept])


def _chosen(series: Series, entity: NDArray[np.int64]) -> Series:
    index = entity[series.entity]
    kept = index >= 0
    return Series(entity=index[kept].astype(np.int32), name=series.name[kept], values=series.values[kept])


def _summed(series: Series, *, names: int) -> Series:
    """Rows of the same entity and name added: several pods of one job on one device."""
    key = series.entity.astype(np.int64) * max(names, 1) + series.name
    order = np.argsort(key, kind="stable")
    key = key[order]
    fresh = np.ones(len(key), bool)
    fresh[1:] = key[1:] != key[:-1]
    if fresh.all():
        return series
    starts = np.flatnonzero(fresh)
    values = series.values[order]
    missing = values == MISSING
    sums = np.add.reduceat(np.where(missing, 0, values), starts, axis=0)
    unseen = np.logical_or.reduceat(missing, starts, axis=0)
    return Series(
        entity=series.entity[order][starts],
        name=series.name[order][starts],
        values=np.where(unseen, MISSING, sums),
    )


def _same_calls(before: NcclThroughput, now: NcclThroughput) -> bool:
    return before.communicators == now.communicators and before.processes == now.processes


def _training(jobs: set[str], pods: PodList) -> set[str]:
    """Jobs by their owner chain that have GPUs: they are told of even where no NCCL call is seen."""
    return {
        pod.job.key
        for pod in pods.pods.values()
        if pod.job is not None and pod.job.key in jobs and (pod.gpus or pod.job.gpus_total)
    }
