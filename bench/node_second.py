"""The node-second that the benchmarks measure: 8 ports x 40 counters x 10 Hz, 16 pods with RDMA objects, 2 jobs."""

from __future__ import annotations

import random

import numpy as np

from streams.contract import features
from streams.contract.calls import COLUMNS, Column, Op, pack_rows
from streams.contract.header import Clock, Rung, Source
from streams.contract.inputs import (
    CapacitySource,
    Communicator,
    Container,
    Holder,
    JobRef,
    NcclThroughput,
    NicCounters,
    NodePods,
    Pod,
    Port,
    Process,
)
from streams.contract.series import Series, pack, pack_pairs

PORTS, COUNTERS, PODS, JOBS, TICKS, FLUSHES = 8, 40, 16, 2, 5, 2
MOVING_COUNTERS = 10  # Bytes, packets, pauses; the other thirty are error counters and stand still
RANKS = PORTS // JOBS
CALL_KINDS = 3  # (op, type, size) a rank uses in one tick
START_TICK = 17_900_000_000
CLOCK = Clock(epoch_started_us=1, monotonic_us=1, offset_us=10, max_error_us=500)


def counter_series(rng: random.Random, ticks: int = TICKS) -> Series:
    """Every port's every counter."""
    values = np.zeros((PORTS * COUNTERS, ticks), np.int64)
    for row in range(len(values)):
        if row % COUNTERS < MOVING_COUNTERS:
            values[row] = [rng.randrange(1 << rng.choice((8, 16, 30))) for _ in range(ticks)]
    rows = np.arange(PORTS * COUNTERS)
    return Series(entity=(rows // COUNTERS).astype(np.int32), name=(rows % COUNTERS).astype(np.int32), values=values)


def feature_series(rng: random.Random, ticks: int = TICKS) -> Series:
    """Every pod's every feature on its device: bytes move, the objects stand still."""
    names = len(features.HOLDER_FEATURES)
    values = np.zeros((PODS * names, ticks), np.int64)
    for row in range(len(values)):
        name = features.HOLDER_FEATURES[row % names]
        if name in features.LEVELS:
            values[row] = rng.randrange(1, 1 << 20)
        elif name in {features.TX_BYTES, features.RX_BYTES, features.TX_PACKETS, features.RX_PACKETS}:
            values[row] = [rng.randrange(1 << 30) for _ in range(ticks)]
    rows = np.arange(PODS * names)
    return Series(entity=(rows // names).astype(np.int32), name=(rows % names).astype(np.int32), values=values)


def call_rows(rng: random.Random, flush: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Every rank's step takes one tick: a few operations, at nearly the same place in each."""
    ranks = JOBS * RANKS
    rows = np.zeros((TICKS * ranks * CALL_KINDS, COLUMNS), np.int64)
    for place, row in enumerate(rows):
        tick, rank, kind = place // (ranks * CALL_KINDS), place // CALL_KINDS % ranks, place % CALL_KINDS
        row[Column.TICK_OFFSET], row[Column.COMMUNICATOR] = tick, rank
        row[Column.OP] = (Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER)[kind]
        row[Column.DTYPE], row[Column.COUNT], row[Column.BYTES] = 9, 1 << (20 + kind), 1 << (21 + kind)
        calls = (1, 8, 16)[kind]
        row[Column.CALLS] = calls
        row[Column.FIRST_SEQ] = 1 + (flush * TICKS + tick) * 25 + (0, 1, 9)[kind]
        row[Column.LAST_SEQ] = row[Column.FIRST_SEQ] + calls - 1
        row[Column.FIRST_US] = tick * 100_000 + (80_000, 5_000, 40_000)[kind] + rng.randrange(1000)
        row[Column.LAST_US] = row[Column.FIRST_US] + (0, 20_000, 30_000)[kind]
    return rows


def pod_uid(number: int) -> str:
    """A uid as Kubernetes makes them."""
    return f"{number:08x}-0000-4000-8000-{number:012x}"


def nic_record(node: str, flush: int, rng: random.Random) -> NicCounters:
    """One flush of the node's ports and holders."""
    return NicCounters(
        cluster="bench",
        node=node,
        agent_epoch="e",
        seq=flush + 1,
        first_tick=START_TICK + flush * TICKS,
        ticks=TICKS,
        complete_through_tick=START_TICK + flush * TICKS + TICKS - 1,
        source=Source.SIMULATED,
        clock=CLOCK,
        ports=[
            Port(
                device=f"mlx5_{number}",
                port=1,
                netdev=f"eth{number}",
                link_layer="Ethernet",
                rate_mbps=400_000,
                capacity_mbps=400_000,
                capacity_source=CapacitySource.RATE,
            )
            for number in range(PORTS)
        ],
        counter_names=_counter_names(),
        counters=pack(counter_series(rng)),
        holders=[
            Holder(pod_uid=pod_uid(number), container_id=f"{number:064x}", comm="python", cgroup_id=1000 + number)
            for number in range(PODS)
        ],
        devices=[f"mlx5_{number}" for number in range(PORTS)],
        holdings=pack_pairs(list(range(PODS)), [number % PORTS for number in range(PODS)]),
        feature_names=list(features.HOLDER_FEATURES),
        features=pack(feature_series(rng)),
        bytes_rung=Rung.PROCESS_BYTES,
    )


def nccl_record(node: str, flush: int, rng: random.Random) -> NcclThroughput:
    """The same flush's calls."""
    return NcclThroughput(
        cluster="bench",
        node=node,
        agent_epoch="e",
        seq=flush + 1,
        first_tick=START_TICK + flush * TICKS,
        ticks=TICKS,
        complete_through_tick=START_TICK + flush * TICKS + TICKS - 1,
        source=Source.SIMULATED,
        clock=CLOCK,
        processes=[
            Process(pid=100 + rank, started_us=1, comm="python", pod_uid=pod_uid(rank), container_id=f"{rank:064x}")
            for rank in range(JOBS * RANKS)
        ],
        communicators=[
            Communicator(process=rank, comm=f"c{rank % JOBS}", rank=rank // JOBS, nranks=RANKS)
            for rank in range(JOBS * RANKS)
        ],
        rows=pack_rows(call_rows(rng, flush)),
    )


def pods_record(node: str) -> NodePods:
    """The node's pods: eight of two jobs, eight of others."""
    return NodePods(
        cluster="bench",
        node=node,
        watcher_epoch="w",
        seq=1,
        as_of_tick=START_TICK,
        pods=[
            Pod(
                pod_uid=pod_uid(number),
                namespace="ns",
                name=f"pod-{number}",
                tenant="ns",
                job=JobRef(key=f"ns/Job/{number % JOBS}", name=str(number % JOBS)) if number < JOBS * RANKS else None,
                gpus=1,
                containers=[Container(container_id=f"{number:064x}", name="main")],
                valid_from_tick=START_TICK - 10_000,
            )
            for number in range(PODS)
        ],
    )


def _counter_names() -> list[str]:
    known = [
        "ib/port_xmit_data",
        "ib/port_rcv_data",
        "ib/port_xmit_packets",
        "ib/port_rcv_packets",
        "ib/port_xmit_wait",
        "eth/rx_prio3_pause_duration",
        "eth/tx_prio3_pause_duration",
        "hw/np_cnp_sent",
        "hw/rp_cnp_handled",
        "hw/np_ecn_marked_roce_packets",
    ]
    return known + [f"hw/error_counter_{number}" for number in range(COUNTERS - len(known))]
