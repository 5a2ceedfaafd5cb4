"""A small deterministic cluster: jobs in steps, other pods with loads, one shared rate per port, as input records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np

from streams.contract import features
from streams.contract.calls import COLUMNS, Column, Op, pack_rows
from streams.contract.header import Rung, Source, WatcherClock
from streams.contract.inputs import (
    CapacitySource,
    CommEvent,
    Communicator,
    Holder,
    JobRef,
    NcclThroughput,
    NicCounters,
    NodeFacts,
    NodePods,
    Pod,
    Port,
    Process,
)
from streams.contract.series import Series, pack, pack_pairs
from streams.contract.ticks import TICK_US

START = 17_900_000_000  # A whole second
FLUSH = 5
FEATURES = [
    features.QP_LIVE,
    features.QP_CREATED,
    features.QP_DESTROYED,
    features.MR_LIVE,
    features.MR_REGISTERED,
    features.MR_DEREGISTERED,
    features.MR_LIVE_BYTES,
    features.TX_BYTES,
]
COUNTERS = ["net/tx_bytes", "net/rx_bytes", "hw/link_downed", "port/state", "eth/rx_dropped"]

Record = NicCounters | NcclThroughput | NodePods
Log = dict[tuple[str, int], list[Record]]


@dataclass(frozen=True, kw_only=True)
class Load:
    """A pod that is no training job: what it does while it is on."""

    name: str
    node: str
    on: tuple[int, int] = (0, 10**9)  # Ticks after START
    tx_per_tick: int = 0
    qps: int = 8
    mr_churn: int = 0
    harm: float = 1.0  # 1: its bytes take their part of the port; 0: they go elsewhere than the victim's
    slows: float = 0.0  # Without bytes: the part of the port's rate that it takes away
    device: str = "mlx5_0"

    def active(self, tick: int) -> bool:
        return self.on[0] <= tick < self.on[1]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A synchronous job with one rank and one pod per entry of `nodes`."""

    name: str
    nodes: tuple[str, ...]
    compute_us: int = 300_000
    bytes_per_step: int = 25_000_000
    sleeps: tuple[tuple[int, int, int], ...] = ()  # (from tick, to tick, extra microseconds per step)
    noise_e4: int = 50
    gpus: int | None = 8
    on: tuple[int, int] = (0, 10**9)
    device: str = "mlx5_0"
    more_from: tuple[int, int] = (10**9, 1)  # From this tick on, this many times the bytes per step
    queued: bool = False  # Bytes leave for a queue all at once; acknowledgements come back on mlx5_1 as they arrive


@dataclass(kw_only=True)
class Scene:
    """What happens, and who is there to see it."""

    ticks: int
    trainings: list[Training]
    loads: list[Load] = field(default_factory=list)
    rate_per_tick: int = 10_000_000  # The port's true capacity: 100 MB/s
    partition_of: dict[str, int] = field(default_factory=dict)
    partitions: int = 1
    silent: dict[str, tuple[int, int]] = field(default_factory=dict)  # Node sends nothing in these ticks
    restart_at: dict[str, int] = field(default_factory=dict)  # New agent epoch from this tick on
    join_at: dict[str, int] = field(default_factory=dict)  # Node appears at this tick
    price_micros: int | None = 2_500_000
    price_drifts: bool = False  # The pods are written again each second, the price growing by one each tick
    link_down: tuple[str, int] | None = None  # node, tick
    source: Source = Source.KERNEL

    def nodes(self) -> list[str]:
        return sorted({n for t in self.trainings for n in t.nodes} | {load.node for load in self.loads})

    def logs(self) -> Log:
        """Each topic-partition's records in log order."""
        played = [_play(self, training) for training in self.trainings]
        logs: Log = {
            (topic, p): [] for topic in ("nic-counters", "nccl-throughput", "node-pods") for p in range(self.partitions)
        }
        for node in self.nodes():
            logs["node-pods", self._partition(node)].append(self._pods(node, self.price_micros))
        for tick in range(0, self.ticks, FLUSH):
            if tick % 10 == 0:
                for (topic, _), log in logs.items():
                    log.append(_clock(topic, START + tick))
            for node in self.nodes() if self.price_drifts and tick % 10 == 5 else ():
                record = self._pods(node, (self.price_micros or 0) + tick)
                logs["node-pods", self._partition(node)].append(
                    msgspec.structs.replace(record, as_of_tick=START + tick)
                )
            for node in self.nodes():
                if tick < self.join_at.get(node, 0):
                    continue
                begin, end = self.silent.get(node, (-1, -1))
                if begin <= tick < end:
                    continue
                nic, nccl = self._flush(node, tick, played)
                logs["nic-counters", self._partition(node)].append(nic)
                logs["nccl-throughput", self._partition(node)].append(nccl)
        for (topic, _), log in logs.items():
            log.append(_clock(topic, START + self.ticks))
        return logs

    def in_time_order(self) -> Iterator[tuple[str, int, Record]]:
        """All logs merged as they would have been written."""
        entries = [
            (_when(record), topic, partition, index, record)
            for (topic, partition), log in self.logs().items()
            for index, record in enumerate(log)
        ]
        for _, topic, partition, _, record in sorted(entries, key=lambda entry: entry[:4]):
            yield topic, partition, record

    def _partition(self, node: str) -> int:
        return self.partition_of.get(node, 0)

    def _pods(self, node: str, price_micros: int | None) -> NodePods:
        pods = [
            Pod(
                pod_uid=f"{t.name}-{node}",
                namespace="train",
                name=f"{t.name}-{node}",
                tenant="research",
                job=JobRef(
                    key=f"train/job/{t.name}",
                    name=t.name,
                    gpus_total=None if t.gpus is None else t.gpus * len(t.nodes),
                ),
                gpus=t.gpus,
                valid_from_tick=START,
            )
            for t in self.trainings
            if node in t.nodes
        ] + [
            Pod(
                pod_uid=f"{load.name}-uid",
                namespace="serve",
                name=load.name,
                tenant="product",
                valid_from_tick=START,
            )
            for load in self.loads
            if load.node == node
        ]
        return NodePods(
            cluster="c1",
            node=node,
            watcher_epoch="w",
            seq=1,
            as_of_tick=START,
            pods=pods,
            facts=NodeFacts(gpu_hour_price_micros=price_micros, currency="USD", price_source="file"),
        )

    def _flush(self, node: str, tick: int, played: list[Played]) -> tuple[NicCounters, NcclThroughput]:
        restart = self.restart_at.get(node, 10**9)
        epoch = "b" if tick >= restart else "a"
        seq = (tick - restart if epoch == "b" else tick) // FLUSH + 1
        span = range(tick, tick + FLUSH)
        holders: list[Holder] = []
        rows: dict[tuple[int, int], list[int]] = {}
        devices = ["mlx5_0", "mlx5_1"]
        held: list[int] = []
        holder_of: list[int] = []
        port_bytes = np.zeros((2, FLUSH), np.int64)
        for training, play in zip(self.trainings, played, strict=True):
            if node in training.nodes and training.on[0] <= tick < training.on[1]:
                sent = play.sent[tick : tick + FLUSH].tolist()
                device = devices.index(training.device)
                _add(rows, len(held), {features.QP_LIVE: [4] * FLUSH, features.TX_BYTES: sent})
                holders.append(Holder(pod_uid=f"{training.name}-{node}"))
                holder_of.append(len(holders) - 1)
                held.append(device)
                if training.queued:
                    acks = play.acks[tick : tick + FLUSH].tolist()
                    _add(rows, len(held), {features.QP_LIVE: [4] * FLUSH, features.TX_BYTES: acks})
                    holder_of.append(len(holders) - 1)
                    held.append(1)
                    port_bytes[1] += np.array(acks)
                port_bytes[device] += np.array(sent)
        for load in (load for load in self.loads if load.node == node):
            sent = [load.tx_per_tick if load.active(t) else 0 for t in span]
            churn = [load.mr_churn if load.active(t) else 0 for t in span]
            device = devices.index(load.device)
            _add(
                rows,
                len(held),
                {
                    features.QP_LIVE: [load.qps if load.active(t) else 0 for t in span],
                    features.TX_BYTES: sent,
                    features.MR_REGISTERED: churn,
                    features.MR_DEREGISTERED: churn,
                },
            )
            holders.append(Holder(pod_uid=f"{load.name}-uid"))
            holder_of.append(len(holders) - 1)
            held.append(device)
            if load.harm:
                room = self.rate_per_tick - port_bytes[device]
                port_bytes[device] += np.minimum(np.array(sent), np.maximum(room, 0))
            else:
                port_bytes[device] += np.array(sent)
        down = [int(self.link_down == (node, t)) for t in span]
        counters = {
            (0, 0): port_bytes[0].tolist(),
            (0, 1): (port_bytes[0] // 10).tolist(),
            (1, 0): port_bytes[1].tolist(),
            (1, 1): (port_bytes[1] // 10).tolist(),
            (0, 2): down,
            (0, 3): [1 if value else 4 for value in down],
            (1, 3): [4] * FLUSH,
        }
        common = {"cluster": "c1", "node": node, "agent_epoch": epoch, "seq": seq, "source": self.source}
        timing = {"first_tick": START + tick, "ticks": FLUSH, "complete_through_tick": START + tick + FLUSH - 1}
        nic = NicCounters(
            **common,
            **timing,
            ports=[
                Port(device=name, port=1, rate_mbps=10_000, capacity_mbps=10_000, capacity_source=CapacitySource.RATE)
                for name in devices
            ],
            counter_names=COUNTERS,
            counters=_packed(counters),
            holders=holders,
            devices=devices,
            holdings=pack_pairs(holder_of, held),
            feature_names=FEATURES,
            features=_packed(rows),
            bytes_rung=Rung.KERNEL_PROBES,
        )
        processes, communicators, calls = [], [], []
        for training, play in zip(self.trainings, played, strict=True):
            if node not in training.nodes or not training.on[0] <= tick < training.on[1]:
                continue
            rank = training.nodes.index(node)
            calls.extend(play.calls_in(tick, len(communicators), rank))
            communicators.append(
                Communicator(
                    process=len(processes), comm=f"hash-{training.name}", rank=rank, nranks=len(training.nodes)
                )
            )
            processes.append(
                Process(
                    pid=100 + 10 * self.trainings.index(training) + rank,
                    started_us=1,
                    pod_uid=f"{training.name}-{node}",
                )
            )
        matrix = np.array(calls, np.int64).reshape(-1, COLUMNS)
        nccl = NcclThroughput(
            **common,
            **timing,
            processes=processes,
            communicators=communicators,
            rows=pack_rows(matrix),
            events=list[CommEvent](),
        )
        return nic, nccl


@dataclass(frozen=True, kw_only=True)
class Played:
    """What a job did: when each step's call was made, and bytes sent per tick on each of its nodes."""

    call_us: list[int]  # After START
    sent: np.ndarray
    acks: np.ndarray
    call_bytes: list[int]

    def calls_in(self, tick: int, communicator: int, rank: int) -> Iterator[list[int]]:
        """Rows of one small and one big collective per step, of the five ticks from `tick` on."""
        low, high = tick * TICK_US, (tick + FLUSH) * TICK_US
        for step, at in enumerate(self.call_us):
            when = at + rank * (step + 1) * 7919 % 3000  # Ranks call a little apart, differently each time
            if low <= when < high:
                offset = (when - low) // TICK_US
                for part, (op, count) in enumerate(((Op.ALL_GATHER, 4), (Op.ALL_REDUCE, self.call_bytes[step] // 4))):
                    row = [0] * COLUMNS
                    row[Column.TICK_OFFSET] = offset
                    row[Column.COMMUNICATOR] = communicator
                    row[Column.OP], row[Column.DTYPE], row[Column.COUNT] = op, 7, count
                    row[Column.BYTES], row[Column.CALLS], row[Column.FAILED] = count * 4, 1, 1
                    row[Column.FIRST_SEQ] = row[Column.LAST_SEQ] = 2 * step + part + 1
                    row[Column.FIRST_US] = row[Column.LAST_US] = when - low
                    yield row


def _play(scene: Scene, training: Training) -> Played:
    """Step after step: compute, call, then send at the rate that the slowest of its nodes leaves."""
    sent, acks = np.zeros(scene.ticks + 100, np.int64), np.zeros(scene.ticks + 100, np.int64)
    calls: list[int] = []
    sizes: list[int] = []
    now = training.on[0] * TICK_US
    end = min(scene.ticks, training.on[1]) * TICK_US
    step = 0
    while now < end:
        tick = now // TICK_US
        extra = sum(us for low, high, us in training.sleeps if low <= tick < high)
        wobble = (step * 2_654_435_761 % 2_001 - 1_000) * training.noise_e4 // 1_000
        now += training.compute_us * (10_000 + wobble) // 10_000 + extra
        calls.append(now)
        more_tick, times = training.more_from
        left = float(training.bytes_per_step) * (times if now // TICK_US >= more_tick else 1)
        sizes.append(int(left))
        posted_tick = now // TICK_US
        while left > 0.5 and now < end + 50 * TICK_US:
            tick = now // TICK_US
            free = _free_rate(scene, training, tick) / TICK_US
            room = (tick + 1) * TICK_US - now
            took = min(room, int(left / free) + 1)
            moved = min(left, took * free)
            if tick < len(sent):
                sent[posted_tick if training.queued else tick] += int(moved)
                acks[tick] += int(moved) // 200
            left -= moved
            now += took
        step += 1
    return Played(call_us=calls, sent=sent, acks=acks, call_bytes=sizes)


def _free_rate(scene: Scene, training: Training, tick: int) -> float:
    rate = float(scene.rate_per_tick)
    worst = rate
    for node in training.nodes:
        left = rate
        for load in scene.loads:
            if load.node == node and load.active(tick) and load.device == training.device:
                left -= load.harm * load.tx_per_tick + load.slows * rate
        worst = min(worst, max(left, rate * 0.02))
    return worst


def _add(rows: dict[tuple[int, int], list[int]], entity: int, values: dict[str, list[int]]) -> None:
    for name, series in values.items():
        rows[entity, FEATURES.index(name)] = series


def _packed(rows: dict[tuple[int, int], list[int]]):
    return pack(
        Series(
            entity=np.array([entity for entity, _ in rows], np.int32),
            name=np.array([name for _, name in rows], np.int32),
            values=np.array(list(rows.values()), np.int64).reshape(-1, FLUSH),
        )
    )


def _clock(topic: str, tick: int) -> Record:
    clock = WatcherClock(watcher_epoch="w", seq=tick, tick=tick)
    if topic == "node-pods":
        return NodePods(cluster="c1", node="", watcher_epoch="w", seq=tick, as_of_tick=tick, watcher_clock=clock)
    make: Callable[..., NicCounters | NcclThroughput] = NicCounters if topic == "nic-counters" else NcclThroughput
    return make(
        cluster="c1",
        node="",
        agent_epoch="",
        seq=0,
        first_tick=tick,
        ticks=0,
        complete_through_tick=tick,
        watcher_clock=clock,
    )


def _when(record: Record) -> int:
    if record.watcher_clock is not None:
        return record.watcher_clock.tick
    return record.as_of_tick - 1 if isinstance(record, NodePods) else record.first_tick + record.ticks
