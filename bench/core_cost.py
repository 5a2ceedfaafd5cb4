"""What a node-second costs a stream worker: decode both inputs, slices out and in again, join and judge.

Microseconds of CPU time of this process, the best of several rounds: whatever else runs only ever adds, by way of
caches and clock speeds. `--profile` shows where the core's time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import random
import time
from collections.abc import Callable, Sequence

from bench._node_second import (
    COUNTERS,
    FLUSHES,
    JOBS,
    PODS,
    PORTS,
    START_TICK,
    TICKS,
    clock_records,
    nccl_record,
    nic_record,
    pods_record,
)
from streams.contract.inputs import NcclThroughput, NicCounters, NodePods
from streams.contract.slices import JobSlice
from streams.contract.topics import JOB_SLICES, NCCL_THROUGHPUT, NIC_COUNTERS
from streams.contract.wire import Decoder, Encoder
from streams.core.core import Join, JoinSettings, Judge, JudgeSettings

NODES, SECONDS = 4, 60  # Of one input partition: its clocks are shared
WARM_SECONDS = 20  # The core learns and compiles
ROUNDS, CALLS_PER_ROUND = 7, 60
BUDGET_US = {"decode both inputs": 250, "slices: encode and decode": 100, "core: join and judge": 150}
Record = NicCounters | NcclThroughput | NodePods


def seconds() -> list[list[Record]]:
    """Per second, every input record of every node."""
    rng = random.Random(1)
    found: list[list[Record]] = []
    for second in range(SECONDS):
        records: list[Record] = list(clock_records(START_TICK + 10 * second - 1))
        if not second:
            records += [pods_record(f"n{node}") for node in range(NODES)]
        for flush in range(second * FLUSHES, (second + 1) * FLUSHES):
            for node in range(NODES):
                records += [nic_record(f"n{node}", flush, rng), nccl_record(f"n{node}", flush)]
        found.append(records)
    return found


def best_us(work: Callable[[], object]) -> float:
    """One call, in the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        for _ in range(CALLS_PER_ROUND):
            work()
        best = min(best, (time.process_time_ns() - began) / CALLS_PER_ROUND)
    return best / 1000


def decode_us(records: Sequence[Record]) -> float:
    """Decoding both inputs of one node, all flushes of a second."""
    messages = [
        (Decoder(topic), Encoder(topic)(record))
        for topic, kind in ((NIC_COUNTERS, NicCounters), (NCCL_THROUGHPUT, NcclThroughput))
        for record in records
        if isinstance(record, kind) and record.node == "n0"
    ]
    return best_us(lambda: [decode(value) for decode, value in messages])


def core_us(per_second: Sequence[Sequence[Record]], rounds: int = ROUNDS) -> tuple[float, float, list[JobSlice], int]:
    """Join and judge of one node; the last second's slices of one node; the bytes of the state of all."""
    gc.collect()
    gc.freeze()  # The input is this script's, not the core's: no collector should walk it
    best_join = best_judge = float("inf")
    last: list[JobSlice] = []
    state = 0
    for _ in range(rounds):
        join, judge = Join(JoinSettings(), 0), Judge(JudgeSettings(), 1)
        join_ns, judge_ns = [], []
        for records in per_second:
            began = time.process_time_ns()
            slices = [piece for record in records for piece in join.apply(record)]
            joined = time.process_time_ns()
            for piece in slices:
                judge.apply(piece)
            join_ns.append(joined - began)
            judge_ns.append(time.process_time_ns() - joined)
            last = [piece for piece in slices if piece.node == "n0"]
        node_seconds = 1000 * NODES * (SECONDS - WARM_SECONDS)
        best_join = min(best_join, sum(join_ns[WARM_SECONDS:]) / node_seconds)
        best_judge = min(best_judge, sum(judge_ns[WARM_SECONDS:]) / node_seconds)
        state = len(join.snapshot()) + len(judge.snapshot())
    return best_join, best_judge, last, state


def print_table() -> None:
    """Every figure beside its budget."""
    per_second = seconds()
    join_us, judge_us, slices, state = core_us(per_second)
    encode, decode = Encoder(JOB_SLICES), Decoder(JOB_SLICES)
    values = [encode(piece) for piece in slices]
    encode_us = best_us(lambda: [encode(piece) for piece in slices])
    slice_decode_us = best_us(lambda: [decode(value) for value in values])
    print(f"{PORTS} ports x {COUNTERS} counters x 10 Hz, {PODS} pods, {JOBS} jobs, flushes of {TICKS} ticks")
    print(f"us of CPU a node-second, best of {ROUNDS}; load average {os.getloadavg()[0]:.1f}")
    for name, measured in (
        ("decode both inputs", decode_us(per_second[-1])),
        ("slices: encode", encode_us),
        ("slices: decode", slice_decode_us),
        ("slices: encode and decode", encode_us + slice_decode_us),
        ("core: join", join_us),
        ("core: judge", judge_us),
        ("core: join and judge", join_us + judge_us),
    ):
        budget = f"   budget {BUDGET_US[name]}" if name in BUDGET_US else ""
        print(f"{name:<28}{measured:>8.0f}{budget}")
    print(f"slices {sum(map(len, values)):,} bytes a node-second; state {state / NODES:,.0f} bytes a node")


def main() -> None:
    """The table, or a profile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="show where the core's time goes")
    if parser.parse_args().profile:
        per_second, profile = seconds(), cProfile.Profile()
        profile.runcall(core_us, per_second, 2)
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        return
    print_table()


if __name__ == "__main__":
    main()
