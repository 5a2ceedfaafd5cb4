"""What a node-second costs the stream worker: decode both inputs, the core's steps, slices out and in again."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence

import msgspec

from bench.node_second import (
    COUNTERS,
    FLUSHES,
    JOBS,
    PODS,
    PORTS,
    START_TICK,
    TICKS,
    nccl_record,
    nic_record,
    pods_record,
)
from streams.contract.header import WatcherClock
from streams.contract.inputs import NcclThroughput, NicCounters, NodePods
from streams.contract.slices import JobSlice
from streams.contract.topics import JOB_SLICES, NCCL_THROUGHPUT, NIC_COUNTERS
from streams.contract.wire import Decoder, Encoder
from streams.core.core import CoreSettings, Join, Judge

NODES, SECONDS = 4, 60
WARM_SECONDS = 20
BUDGET_US = {"decode": 250, "slices": 100, "core": 150}


def clock(tick: int) -> list[msgspec.Struct]:
    """The watcher's second hand in all three topics."""
    told = WatcherClock(watcher_epoch="w", seq=tick, tick=tick)
    span = {"seq": 0, "first_tick": tick, "ticks": 0, "complete_through_tick": tick}
    return [
        NicCounters(cluster="bench", node="", agent_epoch="", watcher_clock=told, **span),
        NcclThroughput(cluster="bench", node="", agent_epoch="", watcher_clock=told, **span),
        NodePods(cluster="bench", node="", watcher_epoch="w", seq=tick, as_of_tick=tick, watcher_clock=told),
    ]


def seconds() -> list[list[msgspec.Struct]]:
    """Per second, every input record of every node."""
    rng = random.Random(1)
    found = []
    for second in range(SECONDS):
        records: list[msgspec.Struct] = clock(START_TICK + 10 * second - 1)
        if not second:
            records += [pods_record(f"n{node}") for node in range(NODES)]
        for flush in range(second * FLUSHES, (second + 1) * FLUSHES):
            for node in range(NODES):
                records += [nic_record(f"n{node}", flush, rng), nccl_record(f"n{node}", flush, rng)]
        found.append(records)
    return found


def fastest_tenth(times: Sequence[float]) -> float:
    """What the code costs: whatever else runs on the machine only ever adds."""
    return sorted(times)[len(times) // 10]


def us_since(began_ns: int) -> float:
    return (time.perf_counter_ns() - began_ns) / 1000


def decode_us(per_second: Sequence[Sequence[msgspec.Struct]]) -> float:
    """Decoding both inputs of one node."""
    decoders = {NicCounters: Decoder(NIC_COUNTERS), NcclThroughput: Decoder(NCCL_THROUGHPUT)}
    encoders = {NicCounters: Encoder(NIC_COUNTERS), NcclThroughput: Encoder(NCCL_THROUGHPUT)}
    times = []
    for records in per_second:
        values = [
            (decoders[type(r)], encoders[type(r)](r)) for r in records if isinstance(r, tuple(decoders)) and r.node
        ]
        began = time.perf_counter_ns()
        for decode, value in values:
            decode(value)
        times.append(us_since(began) / NODES)
    return fastest_tenth(times)


def core_us(per_second: Sequence[Sequence[msgspec.Struct]]) -> tuple[float, float, list[JobSlice]]:
    """Join and judge, per node; and the slices that join made."""
    settings = CoreSettings()
    join, judge = Join(settings.join, 0), Judge(settings.judge, 1)
    join_times, judge_times, made = [], [], list[JobSlice]()
    for records in per_second:
        began = time.perf_counter_ns()
        slices = [piece for record in records for piece in join.apply(record)]  # type: ignore[arg-type]
        join_times.append(us_since(began) / NODES)
        began = time.perf_counter_ns()
        for piece in slices:
            judge.apply(piece)
        judge_times.append(us_since(began) / NODES)
        made += slices
    return fastest_tenth(join_times[WARM_SECONDS:]), fastest_tenth(judge_times[WARM_SECONDS:]), made


def slices_us(made: Sequence[JobSlice]) -> tuple[float, float]:
    """Encode and decode of one node-second's slices, and their bytes."""
    encode, decode = Encoder(JOB_SLICES), Decoder(JOB_SLICES)
    pieces = [piece for piece in made if piece.progress is None]
    per_node_second = JOBS * FLUSHES
    times, sizes = [], []
    for place in range(0, len(pieces) - per_node_second, per_node_second):
        batch = pieces[place : place + per_node_second]
        began = time.perf_counter_ns()
        values = [encode(piece) for piece in batch]
        for value in values:
            decode(value)
        times.append(us_since(began))
        sizes.append(sum(map(len, values)))
    return fastest_tenth(times), statistics.median(sizes)


def main() -> None:
    """Print one table."""
    per_second = seconds()
    join_us, judge_us, made = core_us(per_second)
    slice_us, slice_bytes = slices_us(made)
    print(
        f"{PORTS} ports x {COUNTERS} counters x 10 Hz, {PODS} pods, {JOBS} jobs, flush {TICKS} ticks; us a node-second"
    )
    rows = (
        ("decode both inputs", decode_us(per_second), BUDGET_US["decode"]),
        ("slices, encode and decode", slice_us, BUDGET_US["slices"]),
        ("core: join", join_us, None),
        ("core: judge", judge_us, None),
        ("core: both", join_us + judge_us, BUDGET_US["core"]),
    )
    for name, measured, budget in rows:
        print(f"{name:<28}{measured:>8.0f}" + (f"   budget {budget}" if budget else ""))
    print(f"slices: {slice_bytes:.0f} bytes a node-second")


if __name__ == "__main__":
    main()
