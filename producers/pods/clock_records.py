"""The watcher's second hand, as a record of each input topic."""

from __future__ import annotations

import msgspec

from streams.contract.header import Source, WatcherClock
from streams.contract.inputs import NcclThroughput, NicCounters, NodePods
from streams.contract.topics import NCCL_THROUGHPUT, NIC_COUNTERS, NODE_PODS, Topic

# A compacted topic refuses messages without a key; no node can have this name.
CLOCK_KEY = "~clock"


def clock_records(
    *, cluster: str, watcher_epoch: str, seq: int, tick: int, source: Source = Source.UNKNOWN
) -> list[tuple[Topic, msgspec.Struct]]:
    """One record per input topic, each to be written to every partition of its topic."""
    clock = WatcherClock(watcher_epoch=watcher_epoch, seq=seq, tick=tick)
    return [
        (
            NIC_COUNTERS,
            NicCounters(
                cluster=cluster,
                node="",
                agent_epoch=watcher_epoch,
                seq=seq,
                first_tick=tick,
                ticks=0,
                complete_through_tick=tick,
                source=source,
                watcher_clock=clock,
            ),
        ),
        (
            NCCL_THROUGHPUT,
            NcclThroughput(
                cluster=cluster,
                node="",
                agent_epoch=watcher_epoch,
                seq=seq,
                first_tick=tick,
                ticks=0,
                complete_through_tick=tick,
                source=source,
                watcher_clock=clock,
            ),
        ),
        (
            NODE_PODS,
            NodePods(
                cluster=cluster,
                node="",
                watcher_epoch=watcher_epoch,
                seq=seq,
                as_of_tick=tick,
                source=source,
                watcher_clock=clock,
            ),
        ),
    ]
