"""Rows a second from messages into ClickHouse (decode, flatten, insert) beside a bare insert of the same rows."""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from sinks.batches import Batch
from sinks.clickhouse.columns import ArrayRows, Rows
from sinks.clickhouse.migrate import migrate
from sinks.clickhouse.sink import ClickHouseSink, Flatten
from sinks.clickhouse.store import Store
from streams.contract.calls import COLUMNS, Column, Op, pack_rows
from streams.contract.features import HOLDER_FEATURES
from streams.contract.header import Rung, Source
from streams.contract.inputs import Communicator, Holder, NcclThroughput, NicCounters, Port, Process
from streams.contract.series import PackedSeries, Series, pack, pack_pairs
from streams.contract.topics import NCCL_THROUGHPUT, NIC_COUNTERS, Topic
from streams.contract.wire import Decoder, Encoder

# The node that the budgets are stated for: 8 ports x 40 counters at 10 Hz, 16 pods, 2 jobs of 8 ranks together.
PORTS, COUNTERS, PODS, RANKS, TICKS = 8, 40, 16, 8, 5
MOVING_COUNTERS = 16  # Of the 40; the rest are errors, drops and pauses that stand still
FIRST_TICK = 18_011_376_000


def nic(random: np.random.Generator, seq: int) -> NicCounters:
    """One flush of one node."""
    counters = random.integers(1, 10**9, (PORTS, COUNTERS, TICKS))
    counters[:, MOVING_COUNTERS:] = 0
    features = random.integers(0, 10**6, (PODS, len(HOLDER_FEATURES), TICKS))
    features[:, :11] = features[:, :11, :1]  # Objects stand still most of the time; bytes and packets do not
    return NicCounters(
        cluster="lab",
        node=f"node-{seq % 50}",
        agent_epoch="epoch",
        seq=seq,
        first_tick=FIRST_TICK + seq // 50 * TICKS,
        ticks=TICKS,
        complete_through_tick=FIRST_TICK + seq // 50 * TICKS + TICKS - 1,
        source=Source.SIMULATED,
        ports=[Port(device=f"mlx5_{port}", port=1, rate_mbps=400_000) for port in range(PORTS)],
        counter_names=[f"hw/counter_{number}" for number in range(COUNTERS)],
        counters=_packed(counters),
        holders=[Holder(pod_uid=f"uid-{seq % 50}-{pod}", container_id=f"c-{seq % 50}-{pod}") for pod in range(PODS)],
        devices=["mlx5_0"],
        holdings=pack_pairs(list(range(PODS)), [0] * PODS),
        feature_names=list(HOLDER_FEATURES),
        features=_packed(features),
        bytes_rung=Rung.PROCESS_BYTES,
    )


def nccl(random: np.random.Generator, seq: int) -> NcclThroughput:
    """One flush of the same node: one kind of call a rank and tick."""
    rows = random.integers(0, 1000, (RANKS * TICKS, COLUMNS))
    rows[:, Column.COMMUNICATOR] = np.tile(np.arange(RANKS), TICKS)
    rows[:, Column.TICK_OFFSET] = np.repeat(np.arange(TICKS), RANKS)
    rows[:, Column.OP] = Op.ALL_REDUCE
    return NcclThroughput(
        cluster="lab",
        node=f"node-{seq % 50}",
        agent_epoch="epoch",
        seq=seq,
        first_tick=FIRST_TICK + seq // 50 * TICKS,
        ticks=TICKS,
        complete_through_tick=FIRST_TICK + seq // 50 * TICKS + TICKS - 1,
        source=Source.SIMULATED,
        processes=[Process(pid=1000 + rank, pod_uid=f"uid-{seq % 50}-{rank}") for rank in range(RANKS)],
        communicators=[Communicator(process=rank, comm="abc", rank=rank, nranks=RANKS) for rank in range(RANKS)],
        rows=pack_rows(rows),
    )


class TimedStore(Store):
    """A store that knows how long its inserts took."""

    insert_s = 0.0

    def insert(self, rows: Rows, token: str) -> None:
        began = time.perf_counter()
        super().insert(rows, token)
        self.insert_s += time.perf_counter() - began


def sink_path(store: Store, messages: dict[Topic, list[bytes]], batch_messages: int) -> int:
    """What the sink does with messages, batch by batch; returns the rows written."""
    sink = ClickHouseSink(store)
    for topic, values in messages.items():
        decode = Decoder(topic)
        for first in range(0, len(values), batch_messages):
            part = values[first : first + batch_messages]
            records = [decode(value) for value in part]
            for record in records:
                sink.check(record)
            sink.write(_batch(topic, first, records))
    return sum(sink.counts().values())


def bare(store: Store, parts: Sequence[tuple[str, Rows]]) -> int:
    """Only the inserts of the same rows, ready-made as columns."""
    for token, rows in parts:
        store.insert(rows, f"bare-{token}")
    return sum(rows.count for _, rows in parts)


def ready(messages: dict[Topic, list[bytes]], batch_messages: int) -> list[tuple[str, Rows]]:
    """The rows of all batches, made beforehand."""
    flatten, parts = Flatten(), []
    for topic, values in messages.items():
        decode = Decoder(topic)
        for first in range(0, len(values), batch_messages):
            batch = _batch(topic, first, [decode(value) for value in values[first : first + batch_messages]])
            parts += [(batch.token, rows) for rows in flatten(batch)]
            flatten.stored()
    return parts


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--messages", type=int, default=2000, help="of each node topic")
    arguments.add_argument("--batch", type=int, default=1000, help="messages in one insert")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--profile", action="store_true", help="show where the sink's time goes")
    asked = arguments.parse_args()
    random = np.random.default_rng(7)
    encode_nic, encode_nccl = Encoder(NIC_COUNTERS), Encoder(NCCL_THROUGHPUT)
    messages = {
        NIC_COUNTERS: [encode_nic(nic(random, seq)) for seq in range(asked.messages)],
        NCCL_THROUGHPUT: [encode_nccl(nccl(random, seq)) for seq in range(asked.messages)],
    }
    parts = ready(messages, asked.batch)
    samples = sum(rows.count for _, rows in parts if isinstance(rows, ArrayRows))
    print(f"{2 * asked.messages} messages, {samples} sample rows, {asked.batch} messages an insert")
    with tempfile.TemporaryDirectory() as folder:
        best, shares = dict.fromkeys(("sink", "bare"), 0.0), []
        for turn in range(asked.rounds):
            for name, work in (
                ("sink", lambda store: sink_path(store, messages, asked.batch)),
                ("bare", lambda store: bare(store, parts)),
            ):
                rate, insert_share = _rate(Path(folder) / "db", f"{name}{turn}", work)
                best[name] = max(best[name], rate)
                print(f"  {name}: {rate:,.0f} rows/s")
                if name == "sink":
                    shares.append(insert_share)
        print(f"sink {best['sink']:,.0f}, bare {best['bare']:,.0f} rows/s: {best['sink'] / best['bare']:.0%} of bare")
        print(f"of the sink's own time {median(shares):.0%} is the insert, the rest is decoding and flattening")
        if asked.profile:
            _profile(Path(folder) / "db", lambda store: sink_path(store, messages, asked.batch))


def _packed(values: np.ndarray) -> PackedSeries:
    entities, names, ticks = values.shape
    return pack(
        Series(
            entity=np.repeat(np.arange(entities, dtype=np.int32), names),
            name=np.tile(np.arange(names, dtype=np.int32), entities),
            values=values.reshape(-1, ticks),
        )
    )


def _batch(topic: Topic, first: int, records: Sequence[object]) -> Batch:
    last = first + len(records) - 1
    return Batch(
        topic=topic,
        partition=0,
        first=first,
        last=last,
        offsets=range(first, last + 1),
        records=records,  # type: ignore[arg-type]
        letters=(),
    )


def _rate(folder: Path, database: str, work: Callable[[Store], int]) -> tuple[float, float]:
    """Rows a second, and which part of the time the inserts took."""
    keeper = Store(f"chdb://{folder}")
    keeper.command(f"CREATE DATABASE {database}")
    store = TimedStore(f"chdb://{folder}?database={database}")
    migrate(store)
    store.insert_s = 0.0
    began = time.perf_counter()
    rows = work(store)
    elapsed = time.perf_counter() - began
    store.close()
    keeper.command(f"DROP DATABASE {database}")
    keeper.close()
    return rows / elapsed, store.insert_s / elapsed


def _profile(folder: Path, work: Callable[[Store], int]) -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    _rate(folder, "profiled", work)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


if __name__ == "__main__":
    main()
