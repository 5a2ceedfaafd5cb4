"""Records of two small nodes, with numbers that tests can name."""

from collections.abc import Mapping

import msgspec
import numpy as np

from streams.contract.calls import COLUMNS, Column, Op, Timing, pack_rows
from streams.contract.findings import Episode, EpisodePod, Health, Incident, JobState, Kind, Verdict
from streams.contract.header import Gap, Rung, Source, WatcherClock
from streams.contract.inputs import (
    CapacitySource,
    Communicator,
    Container,
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
from streams.contract.plumbing import DeadLetter, HealthStatus, PipelineHealth
from streams.contract.series import MISSING, PackedSeries, Series, pack, pack_pairs
from tests.front.incidents import confirmed, nobody

TICK = 18_011_376_000  # 2027-01-28T08:00:00Z: inside every table's time to live
TICKS = 5
Rows = Mapping[tuple[int, int], list[int]]

COUNTERS = ["ib/port_xmit_data", "hw/np_cnp_sent", "port/state", "eth/tx_prio3_pause"]
XMIT, CNP, STATE, PAUSE = range(4)
FEATURES = ["qp_live", "tx_bytes"]
QP_LIVE, TX_BYTES = range(2)


def packed(rows: Rows) -> PackedSeries:
    """Series of (entity, name) → one value per tick."""
    return pack(
        Series(
            entity=np.array([entity for entity, _ in rows], np.int32),
            name=np.array([name for _, name in rows], np.int32),
            values=np.array(list(rows.values()), np.int64),
        )
    )


def nic(node: str = "node-a", seq: int = 1, **changes: object) -> NicCounters:
    """Two ports; port 0 sends in three ticks, is unreadable in one, and its state holds; port 1 stands still."""
    fields: dict[str, object] = {
        "cluster": "lab",
        "node": node,
        "agent_epoch": "epoch-1",
        "seq": seq,
        "first_tick": TICK + (seq - 1) * TICKS,
        "ticks": TICKS,
        "complete_through_tick": TICK + seq * TICKS - 1,
        "source": Source.KERNEL,
        "ports": [
            Port(device="mlx5_0", port=1, netdev="eth0", rate_mbps=400_000, capacity_source=CapacitySource.RATE),
            Port(device="mlx5_1", port=1),
        ],
        "counter_names": COUNTERS,
        "counters": packed(
            {
                (0, XMIT): [100, 0, 300, MISSING, 500],
                (0, CNP): [0, 0, 0, 0, 0],
                (0, STATE): [4, 4, 4, 4, 4],
                (1, XMIT): [0, 0, 0, 0, 0],
            }
        ),
        "holders": [
            Holder(pod_uid="uid-a", container_id="c0ffee", comm="python"),
            Holder(pid=4242, comm="ib_write_bw"),
        ],
        "devices": ["mlx5_0"],
        "holdings": pack_pairs([0, 1], [0, 0]),
        "feature_names": FEATURES,
        "features": packed({(0, QP_LIVE): [8, 8, 8, 9, 9], (0, TX_BYTES): [0, 0, 0, 0, 0], (1, QP_LIVE): [2] * 5}),
        "bytes_rung": Rung.PROCESS_BYTES,
        "gaps": [Gap(source="rdma", what="tx_bytes of pid:4242", reason="its driver has no counter")],
    }
    return NicCounters(**{**fields, **changes})  # type: ignore[arg-type]


def nic_clock() -> NicCounters:
    """The pod watcher's second hand."""
    return NicCounters(
        cluster="lab",
        node="",
        agent_epoch="",
        seq=0,
        first_tick=TICK,
        ticks=0,
        complete_through_tick=TICK,
        watcher_clock=WatcherClock(watcher_epoch="w", seq=1, tick=TICK),
    )


def nccl(node: str = "node-a", seq: int = 1) -> NcclThroughput:
    """One rank, one row: three all-reduces of 1 MiB in tick 2."""
    row = np.zeros((1, COLUMNS), np.int64)
    values = {
        Column.TICK_OFFSET: 2,
        Column.OP: Op.ALL_REDUCE,
        Column.DTYPE: 7,
        Column.COUNT: 262_144,
        Column.BYTES: 1_048_576,
        Column.CALLS: 3,
        Column.FAILED: 1,
        Column.FIRST_SEQ: 10,
        Column.LAST_SEQ: 12,
        Column.FIRST_US: 201_000,
        Column.LAST_US: 299_000,
        Column.TIMING: Timing.ENQUEUE,
    }
    for column, value in values.items():
        row[0, column] = value
    return NcclThroughput(
        cluster="lab",
        node=node,
        agent_epoch="epoch-1",
        seq=seq,
        first_tick=TICK + (seq - 1) * TICKS,
        ticks=TICKS,
        complete_through_tick=TICK + seq * TICKS - 1,
        source=Source.KERNEL,
        processes=[Process(pid=77, comm="python", pod_uid="uid-train-0", container_id="beef")],
        communicators=[Communicator(process=0, comm="abc123", rank=0, nranks=2)],
        rows=pack_rows(row),
    )


def pods(node: str = "node-a") -> NodePods:
    """One training pod, still there, on a node with a price."""
    return NodePods(
        cluster="lab",
        node=node,
        watcher_epoch="w",
        seq=1,
        as_of_tick=TICK,
        source=Source.KERNEL,
        pods=[
            Pod(
                pod_uid="uid-train-0",
                namespace="team-b",
                name="train-0",
                tenant="team-b",
                job=JobRef(key="team-b/PyTorchJob/train", gpus_total=16),
                gpus=8,
                containers=[Container(container_id="beef", name="main")],
                labels={"app": "train"},
                valid_from_tick=TICK - 600,
            )
        ],
        facts=NodeFacts(gpu_model="H100", gpu_hour_price_micros=2_500_000, currency="USD", price_source="rates file"),
    )


def job_state(tick: int = TICK, health: Health = Health.SLOW) -> JobState:
    return JobState(
        cluster="lab",
        job="team-b/PyTorchJob/train",
        job_name="train",
        job_epoch=1,
        tenant="team-b",
        source=Source.KERNEL,
        tick=tick,
        health=health,
        why="1.6 times its baseline",
        nodes=["node-a", "node-b"],
        ports=["node-a/mlx5_0/1"],
        gpus=16,
        iteration_us=160_000,
        baseline_us=100_000,
        episode_id="ep-1",
    )


def episode(revision: int = 1) -> Episode:
    shape = confirmed()
    return Episode(
        episode_id="ep-1",
        revision=revision,
        cluster="lab",
        job="team-b/PyTorchJob/train",
        job_epoch=1,
        tenant="team-b",
        source=Source.KERNEL,
        verdict=Verdict.CONFIRMED,
        kind=Kind.BANDWIDTH_SATURATION,
        alarm_tick=TICK + 3,
        onset_tick=TICK,
        recovered_tick=TICK + 600,
        decided_tick=TICK + 12,
        as_of_tick=TICK + 650,
        baseline_us=100_000,
        slowed_us=160_000,
        iterations=37,
        loss_e4=3750,
        loss_low_e4=3500,
        loss_high_e4=4000,
        timing_source="enqueue",
        nodes=["node-a"],
        pods=[EpisodePod(pod_uid="uid-train-0", namespace="team-b", name="train-0", node="node-a")],
        gpus=16,
        gpu_ms_lost=360_000,
        causes=shape.causes,
        ruled_out=shape.ruled_out,
        rung=Rung.PROCESS_BYTES,
    )


def incidents() -> list[Incident]:
    """One with everything, one with next to nothing; their ticks are those of this module."""
    shift = TICK - confirmed().onset_tick
    return [_shifted(confirmed(), shift), _shifted(nobody(), shift + 1)]


def dead_letter() -> DeadLetter:
    return DeadLetter(
        component="stream",
        topic="nic-counters",
        partition=3,
        offset=99,
        reason="no Confluent prefix",
        key=b"node-a",
        value=b"\xff\x00garbage",
        headers={"schema-fingerprint": b"00ff"},
        broker_time_ms=TICK * 100,
    )


def health(us: int = TICK * 100_000, status: HealthStatus = HealthStatus.DEGRADED) -> PipelineHealth:
    return PipelineHealth(
        cluster="lab",
        component="agent",
        instance="node-a",
        epoch="epoch-1",
        us=us,
        source=Source.KERNEL,
        status=status,
        message="one probe is missing",
        probes_wanted=12,
        probes_attached=11,
        gaps=[Gap(source="nccl", what="ncclSend", reason="symbol not found")],
        counts={"lost_events": 2},
    )


def _shifted(incident: Incident, ticks: int) -> Incident:
    names = ("onset_tick", "recovered_tick", "decided_tick", "as_of_tick")
    moved = {name: value + ticks for name in names if (value := getattr(incident, name)) is not None}
    return msgspec.structs.replace(incident, **moved)
