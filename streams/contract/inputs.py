"""The three input records: nic-counters, nccl-throughput, node-pods."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from streams.contract.header import About, Clock, Gap, Rung, Source, WatcherClock
from streams.contract.series import PackedSeries


class CapacitySource(StrEnum):
    """Where a port's capacity comes from."""

    UNKNOWN = "unknown"
    RATE = "rate"
    SETTING = "setting"
    OBSERVED = "observed"

    @classmethod
    def _missing_(cls, value: object) -> CapacitySource:  # noqa: ARG003
        """What a newer writer says, as Avro reads it: its default."""
        return cls.UNKNOWN


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One RDMA port; its state per tick is in the gauges `port/state` and `port/phys_state`."""

    device: str
    port: int
    netdev: str | None = None
    link_layer: str | None = None
    rate_mbps: int | None = None
    capacity_mbps: int | None = None
    capacity_source: CapacitySource = CapacitySource.UNKNOWN


class CounterReset(msgspec.Struct, frozen=True, kw_only=True):
    """A counter that went back without a wrap: its delta in this tick is unknown."""

    port: int  # Index into ports
    counter: int  # Index into counter_names
    tick_offset: int


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns RDMA objects: a pod if its uid is known, else a container, else a process.

    Plain strings and numbers, because a union costs twice the decode (bench/array_shapes.py): an empty string or a
    zero, which no identity can be, says "not known".
    """

    pod_uid: str = ""
    container_id: str = ""
    pid: int = 0  # Of one process, where neither pod nor container is known
    comm: str = ""
    cgroup_id: int = 0


class NicCounters(msgspec.Struct, frozen=True, kw_only=True):
    """One node's ports and holders over one flush."""

    cluster: str
    node: str  # Empty on a clock record
    agent_epoch: str  # One life of an agent process, random, compared for equality only
    seq: int  # Counts from 1 in each agent epoch; the same in both node topics
    first_tick: int
    ticks: int
    complete_through_tick: int  # Nothing more will come for ticks up to this one
    source: Source = Source.UNKNOWN
    clock: Clock | None = None
    about: About | None = None
    ports: list[Port] = []
    counter_names: list[str] = []  # ib/ hw/ net/ eth/ + the kernel's own name, in its own unit
    counters: PackedSeries = PackedSeries()  # Entity: index into ports; deltas, or levels for gauges
    resets: list[CounterReset] = []
    holders: list[Holder] = []
    devices: list[str] = []
    holdings: bytes = b""  # uint32 each, little-endian: index into holders << 16 | index into devices
    feature_names: list[str] = []  # qp_created, qp_live, mr_live_bytes, tx_bytes, ...
    features: PackedSeries = PackedSeries()  # Entity: index into holdings
    bytes_rung: Rung = Rung.UNKNOWN  # How tx_bytes and rx_bytes of the holders were seen
    lost_events: int = 0  # Updates that full kernel maps refused, since the epoch began
    gaps: list[Gap] = []
    watcher_clock: WatcherClock | None = None  # Set on clock records only


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process that calls NCCL; an empty string or a zero says "not known", as in Holder."""

    pid: int
    started_us: int = 0
    comm: str = ""
    pod_uid: str = ""
    container_id: str = ""
    cgroup_id: int = 0
    hints: dict[str, str] = {}  # Scheduler variables that can name the job


class Communicator(msgspec.Struct, frozen=True, kw_only=True):
    """One process's end of a communicator."""

    process: int  # Index into processes
    comm: str  # Hash of the unique id, the same on every rank; pid:pointer where the birth was not seen
    rank: int | None = None
    nranks: int | None = None


class CommEventKind(StrEnum):
    """What happened to a communicator."""

    UNKNOWN = "unknown"
    BORN = "born"
    DIED = "died"


class CommEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A communicator's birth or death."""

    kind: CommEventKind = CommEventKind.UNKNOWN
    communicator: int  # Index into communicators
    us: int  # Microseconds after the record's first tick began
    failed: bool = False


class NcclThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """One node's NCCL calls over one flush."""

    cluster: str
    node: str
    agent_epoch: str
    seq: int
    first_tick: int
    ticks: int
    complete_through_tick: int
    source: Source = Source.UNKNOWN
    clock: Clock | None = None
    processes: list[Process] = []
    communicators: list[Communicator] = []
    rows: bytes = b""  # int64 [n, columns], see streams/contract/calls.py
    events: list[CommEvent] = []
    lost_events: int = 0
    gaps: list[Gap] = []
    watcher_clock: WatcherClock | None = None


class JobRef(msgspec.Struct, frozen=True, kw_only=True):
    """The training run that a pod belongs to, by its owner chain."""

    key: str  # namespace/kind/name, unique in a cluster
    kind: str | None = None
    name: str | None = None
    owner_uid: str | None = None
    gpus_total: int | None = None


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """One container of a pod."""

    container_id: str
    name: str


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod on a node, valid from a tick to a tick."""

    pod_uid: str
    namespace: str
    name: str
    tenant: str | None = None
    job: JobRef | None = None
    gpus: int | None = None  # None: unknown, which is not 0
    containers: list[Container] = []
    qos: str | None = None
    labels: dict[str, str] = {}
    valid_from_tick: int
    valid_to_tick: int | None = None  # None: still there


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a node apart from its pods."""

    gpu_model: str | None = None
    gpu_hour_price_micros: int | None = None  # Millionths of the currency for one GPU and hour; None: no price
    currency: str | None = None
    price_source: str | None = None
    labels: dict[str, str] = {}


class NodePods(msgspec.Struct, frozen=True, kw_only=True):
    """A node's full list of pods (ended ones for an hour), or a clock record."""

    cluster: str
    node: str  # Empty on a clock record
    watcher_epoch: str
    seq: int
    as_of_tick: int
    source: Source = Source.UNKNOWN
    pods: list[Pod] = []
    facts: NodeFacts = NodeFacts()
    watcher_clock: WatcherClock | None = None
