"""The node-second that the benchmarks measure: 8 ports x 40 counters x 10 Hz, 16 pods with RDMA objects, 2 jobs."""

from __future__ import annotations

import random

import numpy as np

from streams.contract import features
from streams.contract.calls import COLUMNS, Column, Op, pack_rows
from streams.contract.header import Clock, Rung, Source, WatcherClock
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
STEP_MS = 333
CALL_COUNTS = (4, 1 << 20, 1 << 21, 1 << 22)  # Elements in a step's calls: one small, three large
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
            values[row] = 1 + row
        elif name in {features.TX_BYTES, features.RX_BYTES, features.TX_PACKETS, features.RX_PACKETS}:
            values[row] = [rng.randrange(1 << 30) for _ in range(ticks)]
    rows = np.arange(PODS * names)
    return Series(entity=(rows // names).astype(np.int32), name=(rows % names).astype(np.int32), values=values)


def call_rows(flush: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Every rank's calls: a step every 333 ms, four collectives at its end."""
    rows = []
    for step in range(flush * TICKS * 100 // STEP_MS, (flush + 1) * TICKS * 100 // STEP_MS + 1):
        at_us = (step * STEP_MS - flush * TICKS * 100) * 1000
        if not 0 <= at_us < TICKS * 100_000:
            continue
        for rank in range(JOBS * RANKS):
            for place, count in enumerate(CALL_COUNTS):
                row = [0] * COLUMNS
                row[Column.TICK_OFFSET], row[Column.COMMUNICATOR] = at_us // 100_000, rank
                row[Column.OP], row[Column.DTYPE], row[Column.COUNT] = Op.ALL_REDUCE, 7, count
                row[Column.BYTES], row[Column.CALLS] = 4 * count, 1
                row[Column.FIRST_SEQ] = row[Column.LAST_SEQ] = len(CALL_COUNTS) * step + place + 1
                row[Column.FIRST_US] = row[Column.LAST_US] = at_us
                rows.append(row)
    return np.array(rows, np.int64).reshape(-1, COLUMNS)


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


def nccl_record(node: str, flush: int) -> NcclThroughput:
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
        rows=pack_rows(call_rows(flush)),
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


def clock_records(tick: int) -> tuple[NicCounters, NcclThroughput, NodePods]:
    """The watcher's second hand in all three topics."""
    told = WatcherClock(watcher_epoch="w", seq=tick, tick=tick)
    span = {"seq": 0, "first_tick": tick, "ticks": 0, "complete_through_tick": tick}
    return (
        NicCounters(cluster="bench", node="", agent_epoch="", watcher_clock=told, **span),
        NcclThroughput(cluster="bench", node="", agent_epoch="", watcher_clock=told, **span),
        NodePods(cluster="bench", node="", watcher_epoch="w", seq=tick, as_of_tick=tick, watcher_clock=told),
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
