"""The record between join and judge: what one node knows of one job in one flush."""

from __future__ import annotations

import msgspec

from streams.contract.header import Gap, Rung, Source
from streams.contract.inputs import CapacitySource
from streams.contract.series import PackedSeries


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Every slice of one input partition up to a tick has been sent: nothing earlier will follow."""

    input_partition: int
    through_tick: int


class SlicePod(msgspec.Struct, frozen=True, kw_only=True):
    """One of the job's own pods on this node."""

    pod_uid: str
    namespace: str | None = None
    name: str | None = None
    gpus: int | None = None


class SliceCommunicator(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of the job on this node."""

    comm: str
    pid: int
    rank: int | None = None
    nranks: int | None = None
    pod_uid: str | None = None
    moves_bytes: bool = False  # Its process holds queue pairs or moves bytes: only then it counts in a minimum


class SlicePort(msgspec.Struct, frozen=True, kw_only=True):
    """A port of the node."""

    device: str
    port: int
    netdev: str | None = None
    capacity_mbps: int | None = None
    capacity_source: CapacitySource = CapacitySource.UNKNOWN
    used: bool = False  # The job holds objects or moves bytes on its device


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody else on the node who holds RDMA objects or moves bytes."""

    holder: str  # Pod uid, else container id, else pid:N; the identity that edges are compared under
    device: str
    pod_uid: str | None = None
    container_id: str | None = None
    namespace: str | None = None
    name: str | None = None
    tenant: str | None = None
    job: str | None = None


class SliceRoster(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who and what a slice's numbers are about: it changes when somebody comes or goes, not with each flush."""

    source: Source = Source.UNKNOWN
    agent_epoch: str = ""
    job_name: str | None = None
    tenant: str | None = None
    gpus_total: int | None = None
    pods: list[SlicePod] = []
    gpu_hour_price_micros: int | None = None
    currency: str | None = None
    price_source: str | None = None
    communicators: list[SliceCommunicator] = []
    ports: list[SlicePort] = []
    suspects: list[Suspect] = []
    feature_names: list[str] = []  # Of ports first, then of holders; the same word may stand in both
    bytes_rung: Rung = Rung.UNKNOWN
    gaps: list[Gap] = []


class JobSlice(msgspec.Struct, frozen=True, kw_only=True):
    """One node's view of one job over one flush; or, with `progress` set, only that."""

    cluster: str
    job: str  # Empty on a progress record
    node: str = ""
    seq: int = 0
    first_tick: int = 0
    ticks: int = 0
    progress: Progress | None = None
    nic_silent: bool = False  # nic-counters had nothing for these ticks
    nccl_silent: bool = False
    roster: bytes = b""  # A SliceRoster as MessagePack (streams/contract/rosters.py); empty: nobody
    rows: bytes = b""  # As in nccl-throughput; the index is into the roster's communicators
    # Entities: the roster's P ports as such, then P ports again with the job's own objects and bytes there, then its
    # suspects. In the last two, absent means 0.
    features: PackedSeries = PackedSeries()
