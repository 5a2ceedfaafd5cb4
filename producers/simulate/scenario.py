"""What happens in a simulated cluster: nodes, jobs, pods, and when each of them does what."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

_NAMESPACE = uuid.UUID("c2b1b3f0-5d0e-5b5c-9f39-0a2f6d1f7a10")

GBIT = 125_000_000  # bytes a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of every node. What can be used of its rate is a little less: headers and acknowledgements."""

    device: str
    netdev: str
    rate_mbps: int = 400_000
    usable: float = 0.97

    @property
    def usable_bytes_per_s(self) -> float:
        """Payload that the port carries at most."""
        return self.rate_mbps * 125_000 * self.usable


@dataclass(frozen=True, slots=True, kw_only=True)
class During:
    """A stretch of the scenario, in seconds since its start."""

    begin_s: float
    end_s: float

    def holds(self, at_s: float) -> bool:
        """True inside; the end is outside."""
        return self.begin_s <= at_s < self.end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """One rank of a job computes slower for a while."""

    rank: int
    factor: float
    during: During


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A synchronous training job: one pod per (node, index), one process and rank per GPU."""

    namespace: str
    name: str
    tenant: str
    nodes: tuple[str, ...]
    pods_per_node: int
    gpus_per_pod: int
    device: str
    queue_pairs: int  # per node
    compute_s: float
    bytes_per_iteration: int  # sent and received by each node
    max_bytes_per_s: float  # what its transfer reaches on an idle port
    noise: float = 0.01
    stragglers: tuple[Straggler, ...] = ()
    gap_s: float = 0.002  # between the gradients and the next iteration: optimizer step

    @property
    def key(self) -> str:
        """The job's key, as an owner chain would give it."""
        return f"{self.namespace}/PyTorchJob/{self.name}"

    @property
    def ranks(self) -> int:
        """World size."""
        return len(self.nodes) * self.pods_per_node * self.gpus_per_pod

    def pod_names(self, node: str) -> tuple[str, ...]:
        """The job's pods on a node."""
        first = self.nodes.index(node) * self.pods_per_node
        return tuple(f"{self.name}-worker-{first + i}" for i in range(self.pods_per_node))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A pod that moves bytes without being a training job; `wobble` moves its demand by that part, each second."""

    namespace: str
    name: str
    tenant: str
    node: str
    device: str
    queue_pairs: int
    bytes_per_s: float
    active: tuple[During, ...]
    memory_regions: int = 4
    region_bytes: int = 64 * 2**20
    wobble: float = 0.0
    gpus: int = 0
    closes_when_idle: bool = False  # its queue pairs and regions exist only while it is active
    exists: During | None = None  # None: all the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A whole story; after `seconds` everything simply goes on."""

    nodes: tuple[str, ...]
    ports: tuple[Port, ...]
    jobs: tuple[Job, ...]
    loads: tuple[Load, ...]
    culprit: str  # name of a load
    active: During
    self_slow: During  # when a job slows itself
    seconds: int
    gpu_model: str = "NVIDIA H100 80GB HBM3"
    gpu_hour_price_micros: int = 2_500_000
    currency: str = "USD"
    price_source: str = "demo price, simulated"


def pod_uid(namespace: str, name: str) -> str:
    """A pod's uid, the same in every run."""
    return str(uuid.uuid5(_NAMESPACE, f"{namespace}/{name}"))


def container_id(namespace: str, name: str) -> str:
    """A 64-digit container id, the same in every run."""
    return (uuid.uuid5(_NAMESPACE, f"container/{namespace}/{name}").hex * 2)[:64]


ALWAYS = (During(begin_s=0.0, end_s=float("inf")),)


def demo_scenario() -> Scenario:
    """One culprit with two victims, two heavy innocents, a job that slows itself; 88 s.

    0-40 s all is well; 40-60 s `bulk-export` floods port mlx5_0 of sim-node-a; from 43 s on `nightly-backup` is as
    heavy, but on mlx5_1; 66-80 s one rank of `finetune` computes slower.
    """
    active, self_slow = During(begin_s=40.0, end_s=60.0), During(begin_s=66.0, end_s=80.0)
    pretrain = Job(
        namespace="team-llm",
        name="pretrain",
        tenant="team-llm",
        nodes=("sim-node-a", "sim-node-b"),
        pods_per_node=1,
        gpus_per_pod=8,
        device="mlx5_0",
        queue_pairs=8,
        compute_s=0.45,
        bytes_per_iteration=3_200_000_000,
        max_bytes_per_s=200 * GBIT,
    )
    vision = Job(
        namespace="team-vision",
        name="detector",
        tenant="team-vision",
        nodes=("sim-node-a",),
        pods_per_node=2,
        gpus_per_pod=2,
        device="mlx5_0",
        queue_pairs=4,
        compute_s=0.42,
        bytes_per_iteration=1_000_000_000,
        max_bytes_per_s=100 * GBIT,
    )
    finetune = Job(
        namespace="team-chat",
        name="finetune",
        tenant="team-chat",
        nodes=("sim-node-c",),
        pods_per_node=1,
        gpus_per_pod=8,
        device="mlx5_0",
        queue_pairs=8,
        compute_s=0.55,
        bytes_per_iteration=2_000_000_000,
        max_bytes_per_s=200 * GBIT,
        stragglers=(Straggler(rank=5, factor=1.5, during=self_slow),),
    )
    loads = (
        Load(
            namespace="data-eng",
            name="bulk-export",
            tenant="data-eng",
            node="sim-node-a",
            device="mlx5_0",
            queue_pairs=32,
            bytes_per_s=360 * GBIT,
            active=(active,),
            memory_regions=32,
            closes_when_idle=True,
            exists=During(begin_s=active.begin_s - 6, end_s=active.end_s + 8),
        ),
        Load(
            namespace="data-eng",
            name="nightly-backup",
            tenant="data-eng",
            node="sim-node-a",
            device="mlx5_1",
            queue_pairs=32,
            bytes_per_s=320 * GBIT,
            active=(During(begin_s=active.begin_s + 3, end_s=float("inf")),),
            memory_regions=32,
        ),
        Load(
            namespace="platform",
            name="dataset-cache",
            tenant="platform",
            node="sim-node-a",
            device="mlx5_0",
            queue_pairs=4,
            bytes_per_s=60 * GBIT,
            active=ALWAYS,
            wobble=0.03,
        ),
        Load(
            namespace="serving",
            name="chat-7b",
            tenant="serving",
            node="sim-node-b",
            device="mlx5_0",
            queue_pairs=2,
            bytes_per_s=6 * GBIT,
            active=ALWAYS,
            wobble=0.3,
            gpus=0,
        ),
        Load(
            namespace="serving",
            name="embed",
            tenant="serving",
            node="sim-node-c",
            device="mlx5_1",
            queue_pairs=2,
            bytes_per_s=3 * GBIT,
            active=ALWAYS,
            wobble=0.3,
        ),
    )
    return Scenario(
        nodes=("sim-node-a", "sim-node-b", "sim-node-c"),
        ports=(Port(device="mlx5_0", netdev="ens1f0np0"), Port(device="mlx5_1", netdev="ens1f1np1")),
        jobs=(pretrain, vision, finetune),
        loads=loads,
        culprit="bulk-export",
        active=active,
        self_slow=self_slow,
        seconds=88,
    )
