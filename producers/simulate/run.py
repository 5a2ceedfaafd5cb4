"""Simulated nodes on the wall clock, through the same publisher as real ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Event

import structlog

from producers.publish import DEFAULT_BUFFER_BYTES, Publisher
from producers.simulate.story import DEFAULT_CLUSTER, DEFAULT_FLUSH_TICKS, Story
from producers.write import RecordWriter
from streams.contract.header import Source
from streams.contract.plumbing import HealthStatus, PipelineHealth
from streams.contract.ticks import TICK_US, us_of_tick
from streams.contract.topics import DEFAULT_PARTITIONS, PIPELINE_HEALTH

HEALTH_EVERY_TICKS = 50
CLOSE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateSettings:
    """What a simulated cluster needs to run."""

    kafka: Mapping[str, str | int | float | bool]  # bootstrap.servers and security
    cluster: str = DEFAULT_CLUSTER
    seed: int = 1
    partitions: int = DEFAULT_PARTITIONS  # of the three input topics; clock records go to each of them
    flush_ticks: int = DEFAULT_FLUSH_TICKS
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    start_after_s: float = 0.0  # lets a worker find its partitions before the first record
    registered_ids: Mapping[str, int] = field(default_factory=dict)  # topic name: id in a schema registry


def run(settings: SimulateSettings, stop: Event) -> None:
    """Play the demo scenario on the wall clock from now on, then go on quietly, until `stop` is set."""
    log = structlog.get_logger("simulate")
    publisher = Publisher(settings.kafka, buffer_bytes=settings.buffer_bytes)
    writer = RecordWriter(publisher, registered_ids=settings.registered_ids)
    first_tick = (time.time_ns() // 1000 + int(settings.start_after_s * 1e6)) // TICK_US + 1
    story = Story(
        seed=settings.seed,
        start_tick=first_tick,
        cluster=settings.cluster,
        partitions=settings.partitions,
        flush_ticks=settings.flush_ticks,
    )
    log.info("simulated nodes start", nodes=len(story.scenario.nodes), first_tick=first_tick, seed=settings.seed)
    tick = first_tick
    while not stop.wait(max(0.0, us_of_tick(tick) / 1e6 - time.time())):
        for message in story.next_tick():
            writer.write(message.topic, message.key, message.record, message.partition)
        if (tick - first_tick) % HEALTH_EVERY_TICKS == 0:
            health = _health(settings, publisher, writer, epoch=str(first_tick), tick=tick)
            writer.write(PIPELINE_HEALTH, f"{health.component}/{health.instance}", health)
        tick += 1
    left = publisher.close(CLOSE_TIMEOUT_S)
    log.info("simulated nodes stopped", not_delivered=left.messages)


def _health(
    settings: SimulateSettings, publisher: Publisher, writer: RecordWriter, *, epoch: str, tick: int
) -> PipelineHealth:
    counts = publisher.counts
    return PipelineHealth(
        cluster=settings.cluster,
        component="simulator",
        instance=settings.cluster,
        epoch=epoch,
        us=us_of_tick(tick),
        source=Source.SIMULATED,
        status=HealthStatus.DEGRADED if counts.away or writer.unencodable else HealthStatus.OK,
        message="keeping the newest records: broker away" if counts.away else "",
        counts={
            "delivered": counts.delivered,
            "dropped": counts.dropped,
            "refused": counts.refused,
            "unencodable": writer.unencodable,
        },
    )
