"""What the core costs per node-second at 8 ports x 40 counters x 10 Hz, 16 pods, 2 jobs of 4 ranks on the node.

Run: `python -m bench.core_cost [--profile]`. Budgets: decode of both inputs 250 us, slices encode + decode 100 us,
core (join + judge) 150 us per node-second; CPU time of one thread, best of several rounds.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from streams.contract import features, topics
from streams.contract.calls import COLUMNS, Column, pack_rows
from streams.contract.header import Rung, WatcherClock
from streams.contract.inputs import (
    CapacitySource,
    Communicator,
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
from streams.contract.slices import JobSlice
from streams.contract.wire import Decoder, Encoder
from streams.core.core import Join, JoinSettings, Judge, JudgeSettings

START = 17_900_000_000
SECONDS = 120
FLUSH = 5
PORTS, COUNTERS, PODS, JOBS, RANKS_PER_JOB = 8, 40, 16, 2, 4
COUNTER_NAMES = [
    *(f"ib/port_{way}_{what}" for way in ("xmit", "rcv") for what in ("data", "packets")),
    *(f"hw/{name}" for name in ("rp_cnp_handled", "np_cnp_sent", "np_ecn_marked_roce_packets", "out_of_sequence")),
    *(f"hw/{name}" for name in ("packet_seq_err", "rnr_nak_retry_err", "out_of_buffer", "local_ack_timeout_err")),
    "ib/link_downed",
    "ib/symbol_error",
    "port/state",
    "port/phys_state",
    *(f"eth/{way}_prio{prio}_pause_duration" for way in ("tx", "rx") for prio in range(8)),
    *(f"eth/filler_{number}" for number in range(8)),
]
FEATURES = [
    features.QP_LIVE,
    features.QP_CREATED,
    features.QP_DESTROYED,
    features.MR_LIVE,
    features.MR_REGISTERED,
    features.MR_DEREGISTERED,
    features.MR_LIVE_BYTES,
    features.CQ_LIVE,
    features.TX_BYTES,
    features.RX_BYTES,
]


def node_second(second: int, chance: np.random.Generator) -> list[NicCounters | NcclThroughput]:
    """Both records of both flushes of one second: every job steps three times a second, every pod moves bytes."""
    return [record for half in (0, 1) for record in flush(10 * second + FLUSH * half, chance)]


def flush(tick: int, chance: np.random.Generator) -> tuple[NicCounters, NcclThroughput]:
    values = np.zeros((PORTS * COUNTERS, FLUSH), np.int64)
    moving = np.tile(np.arange(COUNTERS) < 10, PORTS)
    values[moving] = chance.integers(1, 2**32, (int(moving.sum()), FLUSH))
    values[np.tile(np.array(COUNTER_NAMES) == "port/state", PORTS)] = 4
    held = np.zeros((PODS * len(FEATURES), FLUSH), np.int64)
    for index, name in enumerate(FEATURES):
        rows = held[index :: len(FEATURES)]
        if name in {features.TX_BYTES, features.RX_BYTES}:
            rows[:] = chance.integers(1, 10**9, rows.shape)
        elif name in {features.QP_LIVE, features.MR_LIVE, features.MR_LIVE_BYTES, features.CQ_LIVE}:
            rows[:] = 64
    common = {"cluster": "c", "node": "node-1", "agent_epoch": "epoch", "seq": tick // FLUSH + 1}
    timing = {"first_tick": START + tick, "ticks": FLUSH, "complete_through_tick": START + tick + FLUSH - 1}
    nic = NicCounters(
        **common,
        **timing,
        ports=[
            Port(
                device=f"mlx5_{port}",
                port=1,
                netdev=f"eth{port}",
                rate_mbps=400_000,
                capacity_mbps=400_000,
                capacity_source=CapacitySource.RATE,
            )
            for port in range(PORTS)
        ],
        counter_names=COUNTER_NAMES,
        counters=pack(
            Series(
                entity=np.repeat(np.arange(PORTS), COUNTERS).astype(np.int32),
                name=np.tile(np.arange(COUNTERS), PORTS).astype(np.int32),
                values=values,
            )
        ),
        holders=[Holder(pod_uid=pod_uid(pod), container_id=f"{pod:064d}") for pod in range(PODS)],
        devices=[f"mlx5_{port}" for port in range(PORTS)],
        holdings=pack_pairs(range(PODS), [pod % PORTS for pod in range(PODS)]),
        feature_names=FEATURES,
        features=pack(
            Series(
                entity=np.repeat(np.arange(PODS), len(FEATURES)).astype(np.int32),
                name=np.tile(np.arange(len(FEATURES)), PODS).astype(np.int32),
                values=held,
            )
        ),
        bytes_rung=Rung.KERNEL_PROBES,
    )
    ranks = JOBS * RANKS_PER_JOB
    nccl = NcclThroughput(
        **common,
        **timing,
        processes=[Process(pid=100 + rank, started_us=1, pod_uid=pod_uid(rank)) for rank in range(ranks)],
        communicators=[
            Communicator(process=rank, comm=f"comm-{rank // RANKS_PER_JOB}", rank=rank % RANKS_PER_JOB, nranks=32)
            for rank in range(ranks)
        ],
        rows=pack_rows(calls(tick, ranks)),
    )
    return nic, nccl


def calls(tick: int, ranks: int) -> np.ndarray:
    """A step every 333 ms: three big collectives and one small one on each rank."""
    rows = []
    for step in range(tick * 100 // 333, (tick + FLUSH) * 100 // 333 + 1):
        at = step * 333_000 - tick * 100_000
        if 0 <= at < FLUSH * 100_000:
            for rank in range(ranks):
                for part, count in enumerate((4, 1 << 20, 1 << 21, 1 << 22)):
                    row = [0] * COLUMNS
                    row[Column.TICK_OFFSET], row[Column.COMMUNICATOR] = at // 100_000, rank
                    row[Column.OP], row[Column.DTYPE], row[Column.COUNT] = 1, 7, count
                    row[Column.BYTES], row[Column.CALLS] = 4 * count, 1
                    row[Column.FIRST_SEQ] = row[Column.LAST_SEQ] = 4 * step + part + 1
                    row[Column.FIRST_US] = row[Column.LAST_US] = at
                    rows.append(row)
    return np.array(rows, np.int64).reshape(-1, COLUMNS)


def pod_uid(pod: int) -> str:
    return f"00000000-0000-4000-8000-{pod:012d}"


def pods() -> NodePods:
    return NodePods(
        cluster="c",
        node="node-1",
        watcher_epoch="w",
        seq=1,
        as_of_tick=START,
        pods=[
            Pod(
                pod_uid=pod_uid(pod),
                namespace="team",
                name=f"pod-{pod}",
                tenant="team",
                job=JobRef(key=f"team/job/{pod // RANKS_PER_JOB}", name=f"job-{pod // RANKS_PER_JOB}", gpus_total=32)
                if pod < JOBS * RANKS_PER_JOB
                else None,
                gpus=1,
                valid_from_tick=START,
            )
            for pod in range(PODS)
        ],
    )


def clocks(tick: int) -> list[NicCounters | NcclThroughput | NodePods]:
    clock = WatcherClock(watcher_epoch="w", seq=tick, tick=START + tick)
    timing = {"agent_epoch": "", "seq": 0, "first_tick": 0, "ticks": 0, "complete_through_tick": 0}
    return [
        NicCounters(cluster="c", node="", watcher_clock=clock, **timing),
        NcclThroughput(cluster="c", node="", watcher_clock=clock, **timing),
        NodePods(cluster="c", node="", watcher_epoch="w", seq=0, as_of_tick=0, watcher_clock=clock),
    ]


def seconds_of_input() -> list[list[NicCounters | NcclThroughput | NodePods]]:
    chance = np.random.default_rng(0)
    out: list[list[NicCounters | NcclThroughput | NodePods]] = [[pods()]]
    return out + [[*clocks(10 * second), *node_second(second, chance)] for second in range(SECONDS)]


def best_us(work: Callable[[], object], *, rounds: int = 7, per_round: int = 100) -> float:
    """Microseconds per call, the best round."""
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(per_round):
            work()
        best = min(best, (time.thread_time() - began) / per_round)
    return best * 1e6


def core_us(rounds: int = 5) -> tuple[float, float, list[JobSlice], int]:
    """Microseconds per node-second in join and in judge, one second's slices, and the state's bytes."""
    records = seconds_of_input()
    gc.collect()
    gc.freeze()  # The two minutes of input are this script's, not the core's, and no collector should walk them
    best_join = best_judge = float("inf")
    slices: list[JobSlice] = []
    state = 0
    for _ in range(rounds):
        join, judge = Join(JoinSettings(), 0), Judge(JudgeSettings(), 1)
        in_join, in_judge = [], []
        for second in records:
            began = time.thread_time()
            pieces = [piece for record in second for piece in join.apply(record)]
            middle = time.thread_time()
            for piece in pieces:
                judge.apply(piece)
            in_join.append(middle - began)
            in_judge.append(time.thread_time() - middle)
            slices = [piece for piece in pieces if piece.progress is None] or slices
        steady = len(records) // 2  # The first half learns and compiles
        best_join = min(best_join, sum(in_join[steady:]) / len(in_join[steady:]))
        best_judge = min(best_judge, sum(in_judge[steady:]) / len(in_judge[steady:]))
        state = len(join.snapshot()) + len(judge.snapshot())
    return best_join * 1e6, best_judge * 1e6, slices, state


def measure() -> dict[str, float]:
    """All figures, in microseconds per node-second and bytes."""
    chance = np.random.default_rng(0)
    records = node_second(30, chance)
    figures: dict[str, float] = {"input_decode_us": 0.0}
    for topic, record_type in ((topics.NIC_COUNTERS, NicCounters), (topics.NCCL_THROUGHPUT, NcclThroughput)):
        decode = Decoder(topic)
        encoded = [Encoder(topic)(record) for record in records if isinstance(record, record_type)]
        us = sum(best_us(partial(decode, value)) for value in encoded)
        figures[f"decode_{topic.name}_us"] = us
        figures[f"bytes_{topic.name}"] = sum(map(len, encoded))
        figures["input_decode_us"] += us
    join_us, judge_us, slices, state = core_us()
    encode, decode = Encoder(topics.JOB_SLICES), Decoder(topics.JOB_SLICES)
    encoded = [encode(piece) for piece in slices]
    figures["slices_encode_us"] = sum(best_us(partial(encode, piece)) for piece in slices)
    figures["slices_decode_us"] = sum(best_us(partial(decode, value)) for value in encoded)
    figures["bytes_slices"] = sum(map(len, encoded))
    figures |= {"join_us": join_us, "judge_us": judge_us, "core_us": join_us + judge_us, "state_bytes": state}
    return {name: round(value, 1) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="show where the core's time goes")
    if parser.parse_args().profile:
        profile = cProfile.Profile()
        profile.runcall(core_us, 2)
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        return
    print(json.dumps(measure(), indent=2))


if __name__ == "__main__":
    main()
