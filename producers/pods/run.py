"""The pod watcher: node-pods when something changes, everything again every five minutes, a clock each second."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import structlog

from producers.metrics import LOOPBACK, Exporter, publish_values
from producers.pods.book import PodBook
from producers.pods.clock_records import CLOCK_KEY, clock_records
from producers.pods.file import PodsFile
from producers.pods.source import PodSource
from producers.publish import DEFAULT_BUFFER_BYTES, PublishCounts, Publisher
from producers.write import RecordWriter
from streams.contract.inputs import NodePods
from streams.contract.plumbing import HealthStatus, PipelineHealth
from streams.contract.ticks import tick_of_us
from streams.contract.topics import DEFAULT_PARTITIONS, NODE_PODS, PIPELINE_HEALTH

RESEND_TICKS = 3_000  # five minutes
HEALTH_EVERY_S = 5
CLOSE_TIMEOUT_S = 10.0
STEP_BACK_TICKS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsSettings:
    """What the pod watcher needs to run."""

    kafka: Mapping[str, str | int | float | bool]  # bootstrap.servers and security
    cluster: str
    file: Path
    partitions: int = DEFAULT_PARTITIONS  # of the three input topics; clock records go to each of them
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    metrics_port: int | None = None  # None: no metrics
    metrics_host: str = LOOPBACK
    registered_ids: Mapping[str, int] = field(default_factory=dict)  # topic name: id in a schema registry


class Watcher:
    """Turns what a source lists into records; `second` is called once a second with the tick as it is then."""

    def __init__(self, source: PodSource, writer: RecordWriter, *, cluster: str, partitions: int) -> None:
        self._source = source
        self._writer = writer
        self._cluster = cluster
        self._partitions = partitions
        self._book = PodBook()
        self._log = structlog.get_logger("pods")
        self._newest_tick = 0
        self._resent_tick: int | None = None
        self._new_epoch()
        self.problem: str | None = None
        self.problems = 0

    def second(self, now_tick: int) -> None:
        """Read the source, write what changed, and then the clock: what it says covers all before it."""
        if now_tick < self._newest_tick - STEP_BACK_TICKS:
            self._log.warning("wall clock went back", ticks=self._newest_tick - now_tick)
            self._new_epoch()
        self._newest_tick = now_tick
        changed = self._read(now_tick) | self._book.expire(now_tick)
        if self._resent_tick is None or now_tick - self._resent_tick >= RESEND_TICKS:
            self._resent_tick = now_tick
            changed |= set(self._book.nodes)
        for node in sorted(changed):
            self._write_pods(node, now_tick)
        self._write_clock(now_tick)

    def health(self, now_us: int, counts: PublishCounts) -> PipelineHealth:
        """What the watcher says of itself."""
        troubles = [self.problem or "", "broker away: keeping the newest records" if counts.away else ""]
        message = "; ".join(trouble for trouble in troubles if trouble)
        return PipelineHealth(
            cluster=self._cluster,
            component="pods",
            instance=f"{socket.gethostname()}/{os.getpid()}",
            epoch=self.epoch,
            us=now_us,
            status=HealthStatus.DEGRADED if message else HealthStatus.OK,
            message=message,
            counts={
                "nodes": len(self._book.nodes),
                "source_problems": self.problems,
                "delivered": counts.delivered,
                "dropped": counts.dropped,
                "refused": counts.refused,
                "unencodable": self._writer.unencodable,
            },
        )

    def values(self) -> dict[str, float | Mapping[str, float]]:
        """The watcher's metrics."""
        return {
            "pods_source_problems": self.problems,
            "pods_source_broken": int(self.problem is not None),
            "pods_nodes": len(self._book.nodes),
        }

    def _new_epoch(self) -> None:
        self.epoch = str(uuid.uuid4())
        self._seq = self._clock_seq = 0
        self._resent_tick = None

    def _read(self, now_tick: int) -> set[str]:
        reading = self._source.read()
        if reading.problem != self.problem:
            self.problem = reading.problem
            if reading.problem is None:
                self._log.info("pods are readable again")
            else:
                self.problems += 1
                kept = "the last good list holds" if self._book.nodes else "and there is no list yet"
                self._log.error(f"pods cannot be read, {kept}", reason=reading.problem)
        if reading.listing is None:
            return set()
        self._log.info("pods listed", pods=len(reading.listing.pods))
        return self._book.apply(reading.listing, now_tick)

    def _write_pods(self, node: str, now_tick: int) -> None:
        self._seq += 1
        record = NodePods(
            cluster=self._cluster,
            node=node,
            watcher_epoch=self.epoch,
            seq=self._seq,
            as_of_tick=now_tick,
            pods=self._book.pods(node),
            facts=self._book.facts(node),
        )
        self._writer.write(NODE_PODS, node, record)

    def _write_clock(self, now_tick: int) -> None:
        self._clock_seq += 1
        for topic, record in clock_records(
            cluster=self._cluster, watcher_epoch=self.epoch, seq=self._clock_seq, tick=now_tick
        ):
            for partition in range(self._partitions):
                self._writer.write(topic, CLOCK_KEY, record, partition)


def run(settings: PodsSettings, stop: Event) -> None:
    """Watch the file until `stop` is set; without a readable file there are clock records, and health says why."""
    publisher = Publisher(settings.kafka, buffer_bytes=settings.buffer_bytes)
    writer = RecordWriter(publisher, registered_ids=settings.registered_ids)
    watcher = Watcher(PodsFile(settings.file), writer, cluster=settings.cluster, partitions=settings.partitions)
    exporter = Exporter(
        lambda: watcher.values() | publish_values(publisher.counts, unencodable=writer.unencodable),
        port=settings.metrics_port,
        host=settings.metrics_host,
    )
    while not stop.is_set():
        now_us = time.time_ns() // 1000
        watcher.second(tick_of_us(now_us))
        if (now_us // 1_000_000) % HEALTH_EVERY_S == 0:
            health = watcher.health(now_us, publisher.counts)
            writer.write(PIPELINE_HEALTH, f"{health.component}/{health.instance}", health)
        stop.wait(1.0 - time.time() % 1.0)
    exporter.close()
    publisher.close(CLOSE_TIMEOUT_S)
