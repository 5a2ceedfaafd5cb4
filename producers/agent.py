"""Starts the node agent: opens what this machine offers, names what it does not, and samples until told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Protocol

import structlog

from producers.about import about_node, device_folders
from producers.identity.holders import Holder as FoundHolder
from producers.identity.holders import Holders
from producers.identity.process import Process as FoundProcess
from producers.kernel.loader import LoaderUnavailable
from producers.kernel.nccl import NcclCalls
from producers.kernel.rdma import OBJECTS, RdmaObjects
from producers.kernel.rdma_decode import HolderCounters
from producers.loop import Agent, Sources
from producers.metrics import LOOPBACK, Exporter, publish_values
from producers.nccl_flush import NcclTally
from producers.nccl_worker import NcclWorker
from producers.ports.sampler import PortSampler
from producers.publish import DEFAULT_BUFFER_BYTES, Publisher
from producers.rdma_flush import RdmaTally
from producers.write import RecordWriter
from streams.contract.header import About, Gap
from streams.contract.inputs import Holder, Process

EVERYTHING, NO_BYTES = "queue pairs, completion queues, memory regions", "bytes sent per process"
RDMA_PROBES_WANTED = 2  # one group for objects, one for bytes, as the gaps name them
MAX_HOLDERS_REMEMBERED = 16_384
CLOSE_TIMEOUT_S = 10.0


def bpf_folder() -> Path:
    """The BPF sources: packaged, or at the root of a checkout."""
    packaged = Path(__file__).parent / "kernel" / "_bpf"
    return packaged if packaged.is_dir() else Path(__file__).parents[1] / "bpf"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What the node agent needs to run."""

    kafka: Mapping[str, str | int | float | bool]  # bootstrap.servers and security
    cluster: str
    node: str
    flush_ticks: int = 5  # of 100 ms in one record
    buffer_bytes: int = DEFAULT_BUFFER_BYTES  # the newest records kept while Kafka is away
    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    cgroup_root: Path = Path("/sys/fs/cgroup")
    bpf_dir: Path = field(default_factory=bpf_folder)
    rdma_probes: bool = True
    nccl_probes: bool = True
    nccl_libraries: tuple[Path, ...] = ()  # probed before anybody maps them, so that no first call is missed
    port_capacity_mbps: Mapping[str, int] = field(default_factory=dict)  # device/port, where the rate says too much
    metrics_port: int | None = None  # None: no metrics
    metrics_host: str = LOOPBACK
    registered_ids: Mapping[str, int] = field(default_factory=dict)  # topic name: id in a schema registry
    version: str = "unknown"  # of this software, told on the first record


class Resolves(Protocol):
    """What `Holders` is to this file."""

    def resolve(self, pid: int, cgroup_id: int, comm: str = "") -> FoundHolder: ...  # noqa: D102
    def process(self, pid: int, cgroup_id: int) -> FoundProcess | None: ...  # noqa: D102


def run(settings: AgentSettings, stop: Event) -> None:
    """Sample this node until `stop` is set."""
    log = structlog.get_logger("agent")
    publisher = Publisher(settings.kafka, buffer_bytes=settings.buffer_bytes)
    writer = RecordWriter(publisher, registered_ids=settings.registered_ids)
    sources = open_sources(settings)
    for gap in (*sources.gaps, *sources.nccl_gaps):
        log.warning("not seen here", source=gap.source, what=gap.what, reason=gap.reason)
    try:
        agent = Agent(
            sources,
            writer,
            cluster=settings.cluster,
            node=settings.node,
            flush_ticks=settings.flush_ticks,
            publish_counts=lambda: publisher.counts,
        )
        exporter = Exporter(
            lambda: agent.values | publish_values(publisher.counts, unencodable=writer.unencodable),
            port=settings.metrics_port,
            host=settings.metrics_host,
        )
        agent.run(stop)
        exporter.close()
    finally:
        if sources.nccl is not None:
            sources.nccl.close()
        if sources.rdma is not None:
            sources.rdma.close()
        left = publisher.close(CLOSE_TIMEOUT_S)
        log.info("agent stopped", not_delivered=left.messages)


def open_sources(settings: AgentSettings) -> Sources:
    """Every source that this machine has; compiling the probes takes a second or so."""
    holders = Holders(proc=settings.proc, cgroup_root=settings.cgroup_root)
    rdma, gaps = _open_rdma(settings)
    nccl, nccl_gaps = _open_nccl(settings)
    blind = {gap.source for gap in gaps if gap.what in (EVERYTHING, NO_BYTES)}
    missing = [f"RDMA objects: {gap.reason}" for gap in gaps if rdma is None]
    missing += [f"NCCL calls: {gap.reason}" for gap in nccl_gaps if nccl is None]
    return Sources(
        open_ports=lambda: PortSampler(sysfs=settings.sysfs, capacity_settings_mbps=settings.port_capacity_mbps),
        rdma=rdma,
        rdma_tally=None if rdma is None else RdmaTally(resolve_with(holders)),
        nccl=nccl,
        nccl_tally=None if nccl is None else NcclTally(describe_with(holders, settings.proc)),
        gaps=gaps,
        nccl_gaps=nccl_gaps,
        missing=missing,
        probes_wanted=RDMA_PROBES_WANTED if settings.rdma_probes else 0,
        probes_attached=0 if rdma is None else RDMA_PROBES_WANTED - len(blind),
        about=_about_with(settings),
    )


def _open_rdma(settings: AgentSettings) -> tuple[RdmaObjects | None, list[Gap]]:
    if not settings.rdma_probes:
        return None, [Gap(source=OBJECTS, what=EVERYTHING, reason="switched off by the setting rdma_probes")]
    devices = [folder.name for folder in device_folders(settings.sysfs)]
    if not devices:
        # Nothing is compiled and attached for hardware that is not there; a restart finds what comes later.
        return None, [Gap(source=OBJECTS, what=EVERYTHING, reason="no RDMA device when the agent started")]
    rdma = RdmaObjects(bpf_dir=settings.bpf_dir, proc=settings.proc)
    gaps = [Gap(source=gap.source, what=gap.what, reason=gap.reason) for gap in rdma.gaps]
    if any(gap.source == OBJECTS and gap.what == EVERYTHING for gap in gaps):
        rdma.close()
        return None, gaps
    checked = [rdma.self_check(device) for device in devices]
    gaps += [Gap(source=gap.source, what=gap.what, reason=gap.reason) for gap in checked if gap is not None]
    return rdma, gaps


def _open_nccl(settings: AgentSettings) -> tuple[NcclWorker | None, list[Gap]]:
    if not settings.nccl_probes:
        return None, [Gap(source="nccl", what="NCCL calls", reason="switched off by the setting nccl_probes")]
    try:
        probes = NcclCalls(bpf_dir=settings.bpf_dir, proc=settings.proc, libraries=settings.nccl_libraries)
    except LoaderUnavailable as error:
        return None, [Gap(source="nccl", what="NCCL calls", reason=str(error))]
    return NcclWorker(probes), []


def resolve_with(holders: Resolves) -> Callable[[HolderCounters], Holder]:
    """A pod or container is one holder whatever its processes; comm and cgroup are its first process's."""
    together: dict[tuple[str, str], Holder] = {}

    def resolve(counters: HolderCounters) -> Holder:
        found = holders.resolve(counters.pid, counters.cgroup_id, counters.comm)
        pod_uid, container_id = found.pod_uid or "", found.container_id or ""
        if found.kind == "process":
            return Holder(pid=counters.pid, comm=found.comm, cgroup_id=counters.cgroup_id)
        key = (pod_uid, "") if pod_uid else ("", container_id)
        if key not in together:
            while len(together) >= MAX_HOLDERS_REMEMBERED:
                del together[next(iter(together))]
            together[key] = Holder(
                pod_uid=pod_uid, container_id=container_id, comm=found.comm, cgroup_id=counters.cgroup_id
            )
        return together[key]

    return resolve


def describe_with(holders: Resolves, proc: Path) -> Callable[[int, int], Process]:
    """Describes a process that calls NCCL: its owner, its start, its scheduler's words."""
    booted_us = _boot_time_us(proc)
    ticks_per_second = os.sysconf("SC_CLK_TCK")

    def describe(pid: int, cgroup_id: int) -> Process:
        found = holders.resolve(pid, cgroup_id)
        process = holders.process(pid, cgroup_id)
        started_us = 0
        if found.start_ticks is not None and booted_us:
            started_us = booted_us + found.start_ticks * 1_000_000 // ticks_per_second
        return Process(
            pid=pid,
            started_us=started_us,
            comm=found.comm,
            pod_uid=found.pod_uid or "",
            container_id=found.container_id or "",
            cgroup_id=cgroup_id,
            hints={} if process is None else dict(process.environment),
        )

    return describe


def _boot_time_us(proc: Path) -> int:
    """The wall clock at boot, to the second; 0 where it cannot be read."""
    try:
        lines = (proc / "stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1_000_000 for line in lines if line.startswith("btime ")), 0)


def _about_with(settings: AgentSettings) -> Callable[[Sequence[str]], About]:
    told = {
        "flush_ticks": str(settings.flush_ticks),
        "rdma_probes": str(settings.rdma_probes).lower(),
        "nccl_probes": str(settings.nccl_probes).lower(),
    }
    return lambda libraries: about_node(
        agent_version=settings.version, libraries=libraries, settings=told, sysfs=settings.sysfs
    )
