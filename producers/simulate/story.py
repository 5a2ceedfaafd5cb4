"""A scenario as records in the order in which they are written: the whole of it, without waiting."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from producers.encode import Flush
from producers.pods.clock_records import CLOCK_KEY, clock_records
from producers.simulate.engine import TICKS_PER_S, Simulation
from producers.simulate.node import SimulatedNode
from producers.simulate.pods import change_ticks, node_pods
from producers.simulate.scenario import Scenario, demo_scenario
from streams.contract.header import Clock, Source
from streams.contract.ticks import TICK_US, us_of_tick
from streams.contract.topics import NCCL_THROUGHPUT, NIC_COUNTERS, NODE_PODS, Topic

DEFAULT_CLUSTER = "simulated"
DEFAULT_FLUSH_TICKS = 5
# Records wait this long for the durations of the calls in them, as tools that time calls do.
LAG_TICKS = 10
RESEND_TICKS = 3_000  # five minutes
CLOCK_ERROR_US = 1_000

_NAMESPACE = uuid.UUID("0d0e4a0e-5f4e-5f31-8f0a-9f7a1f0c2d11")


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressed:
    """A record and where it goes: its key decides, except where a partition is named."""

    topic: Topic
    key: str
    record: msgspec.Struct
    partition: int | None = None


class Story:
    """Tick by tick: what the simulated agents and the simulated watcher write at each."""

    def __init__(
        self,
        *,
        seed: int,
        start_tick: int,
        scenario: Scenario | None = None,
        cluster: str = DEFAULT_CLUSTER,
        partitions: int = 1,
        flush_ticks: int = DEFAULT_FLUSH_TICKS,
    ) -> None:
        self.scenario = scenario or demo_scenario()
        self.start_tick = start_tick
        self._cluster = cluster
        self._partitions = partitions
        self._flush_ticks = flush_ticks
        self._simulation = Simulation(self.scenario, seed)
        self._nodes = {node: SimulatedNode(self.scenario, node, seed=seed) for node in self.scenario.nodes}
        self._epochs = {node: str(uuid.uuid5(_NAMESPACE, f"{seed}/{start_tick}/{node}")) for node in self._nodes}
        self._watcher_epoch = str(uuid.uuid5(_NAMESPACE, f"{seed}/{start_tick}/watcher"))
        self._changes = change_ticks(self.scenario)
        self._tick = 0
        self._flushes = 0
        self._pod_seq = 0
        self._clock_seq = 0

    def next_tick(self) -> list[Addressed]:
        """Everything that is written at the next tick, in order."""
        tick, found = self._tick, list[Addressed]()
        if tick % RESEND_TICKS == 0 or tick in self._changes:
            found += self._pods(tick)
        if tick % TICKS_PER_S == 0:
            found += self._clocks(tick)
        self._simulation.advance(1)
        self._tick += 1
        if self._tick == (self._flushes + 1) * self._flush_ticks + LAG_TICKS:
            found += self._flush()
        return found

    def _pods(self, tick: int) -> list[Addressed]:
        self._pod_seq += 1
        return [
            Addressed(
                topic=NODE_PODS,
                key=node,
                record=node_pods(
                    self.scenario,
                    node,
                    cluster=self._cluster,
                    watcher_epoch=self._watcher_epoch,
                    seq=self._pod_seq,
                    start_tick=self.start_tick,
                    now_tick=self.start_tick + tick,
                ),
            )
            for node in self.scenario.nodes
        ]

    def _clocks(self, tick: int) -> list[Addressed]:
        self._clock_seq += 1
        records = clock_records(
            cluster=self._cluster,
            watcher_epoch=self._watcher_epoch,
            seq=self._clock_seq,
            tick=self.start_tick + tick,
            source=Source.SIMULATED,
        )
        return [
            Addressed(topic=topic, key=CLOCK_KEY, record=record, partition=partition)
            for topic, record in records
            for partition in range(self._partitions)
        ]

    def _flush(self) -> list[Addressed]:
        first = self._flushes * self._flush_ticks
        last = first + self._flush_ticks - 1
        self._flushes += 1
        calls = {job.key: self._simulation.calls_of(job, first, last) for job in self.scenario.jobs}
        sent = self._simulation.take_sent(self._flush_ticks)
        found: list[Addressed] = []
        for node, simulated in self._nodes.items():
            flush = Flush(
                cluster=self._cluster,
                node=node,
                agent_epoch=self._epochs[node],
                seq=self._flushes,
                first_tick=self.start_tick + first,
                ticks=self._flush_ticks,
                source=Source.SIMULATED,
                clock=Clock(
                    epoch_started_us=us_of_tick(self.start_tick),
                    monotonic_us=first * TICK_US,
                    offset_us=0,
                    max_error_us=CLOCK_ERROR_US,
                ),
                about=simulated.about() if self._flushes == 1 else None,
            )
            nic, nccl = simulated.records(flush, start_tick=self.start_tick, sent=sent, calls=calls)
            found.append(Addressed(topic=NIC_COUNTERS, key=node, record=nic))
            found.append(Addressed(topic=NCCL_THROUGHPUT, key=node, record=nccl))
        return found


def records(
    seed: int,
    start_tick: int,
    seconds: int,
    *,
    scenario: Scenario | None = None,
    cluster: str = DEFAULT_CLUSTER,
    partitions: int = 1,
    flush_ticks: int = DEFAULT_FLUSH_TICKS,
) -> Iterator[Addressed]:
    """All records of so many seconds in the order in which a live run writes them; equal arguments, equal records."""
    story = Story(
        seed=seed,
        start_tick=start_tick,
        scenario=scenario,
        cluster=cluster,
        partitions=partitions,
        flush_ticks=flush_ticks,
    )
    for _ in range(seconds * TICKS_PER_S):
        yield from story.next_tick()
