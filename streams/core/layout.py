"""What changes seldom between two flushes of a node: who is who, compiled once for the jobs on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streams.contract.inputs import Holder, NcclThroughput, NicCounters, Pod
from streams.contract.rosters import roster_bytes
from streams.contract.series import unpack_pairs
from streams.contract.slices import JobSlice, SliceCommunicator, SlicePod, SlicePort, SliceRoster, Suspect
from streams.core.pods import PodList
from streams.core.port_features import PORT_FEATURE_NAMES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobLayout:
    """One job's view of a node: a slice without its numbers, and where each number goes (-1: nowhere)."""

    roster: SliceRoster  # Without gaps: they come and go more often than pods do
    blank: JobSlice
    communicator: NDArray[np.int64]  # Of the nccl record -> of the slice
    holding: NDArray[np.int64]  # Holding of the nic record -> entity of the slice's features
    port: NDArray[np.int64]  # Port of the nic record -> of the slice


def holder_id(*, pod_uid: str, container_id: str, pid: int) -> str:
    """The identity under which a holder's edges are compared."""
    return pod_uid or container_id or f"pid:{pid}"


def holder_jobs(nic: NicCounters, pods: PodList, known: dict[str, str]) -> list[str | None]:
    """Each holder's job: of the processes that it holds (`known`, by holder id), else of its pod."""
    return [_job_of(holder, known, pods) for holder in nic.holders]


def job_layout(
    job: str, nic: NicCounters, nccl: NcclThroughput | None, pods: PodList, *, jobs: list[str | None], mine: list[bool]
) -> JobLayout:
    """Compile one job's layout; `jobs[h]` is holder h's job, `mine[p]` says that process p is the job's."""
    holder, device = unpack_pairs(nic.holdings)
    held = [(jobs[h] == job, int(h), nic.devices[d]) for h, d in zip(holder.tolist(), device.tolist(), strict=True)]
    own_devices = {name for own, _, name in held if own}
    ports = [p for p in range(len(nic.ports)) if not own_devices or nic.ports[p].device in own_devices]
    own_entity: dict[str, int] = {}  # The first port of each device
    for index, p in enumerate(ports):
        own_entity.setdefault(nic.ports[p].device, len(ports) + index)
    suspects: dict[tuple[str, str], int] = {}  # Two containers of a pod are one suspect: their rows are added
    for own, h, name in held:
        if not own:
            suspects.setdefault((_name(nic.holders[h]), name), h)
    suspect_index = {pair: index for index, pair in enumerate(suspects)}
    communicators = [c for c, member in enumerate(nccl.communicators) if mine[member.process]] if nccl else []
    holding_names = {_name(nic.holders[h]) for own, h, _ in held if own} | {
        f"pid:{nic.holders[h].pid}" for own, h, _ in held if own
    }
    own_pods = _own_pods(job, nccl, pods, mine)
    of_job = next((pods.pods[pod.pod_uid] for pod in own_pods if pod.pod_uid in pods.pods), None)
    reference = of_job.job if of_job is not None else None
    roster = SliceRoster(
        source=nic.source,
        agent_epoch=nic.agent_epoch,
        job_name=reference.name if reference is not None else None,
        tenant=of_job.tenant if of_job is not None else None,
        gpus_total=reference.gpus_total if reference is not None else None,
        pods=own_pods,
        gpu_hour_price_micros=pods.facts.gpu_hour_price_micros,
        currency=pods.facts.currency,
        price_source=pods.facts.price_source,
        communicators=_communicators(nccl, communicators, holding_names),
        ports=[
            SlicePort(
                device=nic.ports[p].device,
                port=nic.ports[p].port,
                netdev=nic.ports[p].netdev,
                capacity_mbps=nic.ports[p].capacity_mbps or nic.ports[p].rate_mbps,
                capacity_source=nic.ports[p].capacity_source,
                used=nic.ports[p].device in own_devices,
            )
            for p in ports
        ],
        suspects=[_suspect(nic.holders[h], name, jobs[h], pods) for (_, name), h in suspects.items()],
        feature_names=PORT_FEATURE_NAMES + nic.feature_names,
        bytes_rung=nic.bytes_rung,
    )
    blank = JobSlice(
        cluster=nic.cluster,
        job=job,
        node=nic.node,
        roster=roster_bytes(roster),
    )
    return JobLayout(
        roster=roster,
        blank=blank,
        communicator=_inverse(communicators, len(nccl.communicators) if nccl else 0),
        holding=np.array(
            [
                own_entity.get(name, -1) if own else 2 * len(ports) + suspect_index[_name(nic.holders[h]), name]
                for own, h, name in held
            ],
            np.int64,
        ),
        port=_inverse(ports, len(nic.ports)),
    )


def _job_of(holder: Holder, known: dict[str, str], pods: PodList) -> str | None:
    if (job := known.get(_name(holder))) is not None:
        return job
    if holder.pid and (job := known.get(f"pid:{holder.pid}")) is not None:
        return job
    pod = pods.pods.get(holder.pod_uid)
    return pod.job.key if pod is not None and pod.job is not None else None


def _name(holder: Holder) -> str:
    return holder_id(pod_uid=holder.pod_uid, container_id=holder.container_id, pid=holder.pid)


def _suspect(holder: Holder, device: str, job: str | None, pods: PodList) -> Suspect:
    pod = pods.pods.get(holder.pod_uid)
    return Suspect(
        holder=_name(holder),
        device=device,
        pod_uid=holder.pod_uid or None,
        container_id=holder.container_id or None,
        namespace=pod.namespace if pod is not None else None,
        name=pod.name if pod is not None else holder.comm or None,
        tenant=pod.tenant if pod is not None else None,
        job=job,
    )


def _own_pods(job: str, nccl: NcclThroughput | None, pods: PodList, mine: list[bool]) -> list[SlicePod]:
    uids = {pod.pod_uid for pod in pods.pods.values() if _runs_in(pod, job)}
    if nccl is not None:
        uids |= {process.pod_uid for process, own in zip(nccl.processes, mine, strict=True) if own and process.pod_uid}
    known = pods.pods
    return [
        SlicePod(
            pod_uid=uid,
            namespace=known[uid].namespace if uid in known else None,
            name=known[uid].name if uid in known else None,
            gpus=known[uid].gpus if uid in known else None,
        )
        for uid in sorted(uids)
    ]


def _communicators(nccl: NcclThroughput | None, chosen: list[int], holding: set[str]) -> list[SliceCommunicator]:
    if nccl is None:
        return []
    found = []
    for index in chosen:
        member = nccl.communicators[index]
        process = nccl.processes[member.process]
        named = holder_id(pod_uid=process.pod_uid, container_id=process.container_id, pid=process.pid)
        found.append(
            SliceCommunicator(
                comm=member.comm,
                pid=process.pid,
                rank=member.rank,
                nranks=member.nranks,
                pod_uid=process.pod_uid or None,
                moves_bytes=named in holding or f"pid:{process.pid}" in holding,
            )
        )
    return found


def _inverse(chosen: list[int], length: int) -> NDArray[np.int64]:
    result = np.full(length, -1, np.int64)
    result[chosen] = np.arange(len(chosen))
    return result


def _runs_in(pod: Pod, job: str) -> bool:
    return pod.valid_to_tick is None and pod.job is not None and pod.job.key == job
