"""The Prometheus exporter of findings: reads its topics back at each start, and serves them at /metrics."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import structlog
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sinks.batches import DEFAULT_LIMITS, Batch, Limits
from sinks.consume import ConsumeSettings, consume
from sinks.prometheus.declared import COMPONENT, Declared, Sample
from sinks.prometheus.model import Model
from streams.contract.kafka import KafkaConnection
from streams.contract.topics import DEAD_LETTERS, EPISODES, INCIDENTS, JOB_STATES, PIPELINE_HEALTH
from streams.contract.wire import SchemaIds

TOPICS = (INCIDENTS, EPISODES, JOB_STATES, PIPELINE_HEALTH, DEAD_LETTERS)
# Nothing is committed: all that is known lives in memory, and each start reads so far back that it knows the same.
# Incidents are compacted and kept for ever, so their counters come back whole. The others reach past what the model
# forgets. Dead letters are deleted some day: a counter of those that are left would go down, so it begins at none.
LOOK_BACK_S: Mapping[str, float | None] = {
    INCIDENTS.name: None,
    EPISODES.name: 180.0,
    JOB_STATES.name: 180.0,
    PIPELINE_HEALTH.name: 660.0,
    DEAD_LETTERS.name: 0.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusSettings:
    """Where to read from, and where to answer."""

    kafka: KafkaConnection
    cluster: str
    instance: str
    port: int  # 0: the system chooses one
    host: str = "127.0.0.1"
    group: str = "fabric-sentinel-prometheus"  # Begins the group's name: every life needs all partitions for itself
    registry: SchemaIds | None = None
    limits: Limits = DEFAULT_LIMITS
    health_every_s: float = 5.0
    session_timeout_s: float = 45.0


class CannotServeError(Exception):
    """The address is taken, or not ours."""


def run(settings: PrometheusSettings, stop: threading.Event) -> None:
    """Serve until `stop`; raises CannotServeError."""
    sink = PrometheusSink(settings.cluster)
    registry = CollectorRegistry()
    registry.register(sink)
    try:
        server, thread = start_http_server(settings.port, addr=settings.host, registry=registry)
    except OSError as error:
        raise CannotServeError(f"metrics cannot be served at {settings.host}:{settings.port}: {error}") from error
    structlog.get_logger().info("serving metrics", component=COMPONENT, host=settings.host, port=server.server_port)
    try:
        consume(
            ConsumeSettings(
                kafka=settings.kafka,
                cluster=settings.cluster,
                component=COMPONENT,
                instance=settings.instance,
                group=f"{settings.group}-{uuid.uuid4().hex}",
                topics=TOPICS,
                limits=settings.limits,
                registry=settings.registry,
                look_back_s=LOOK_BACK_S,
                caught_up=sink.caught_up,
                health_every_s=settings.health_every_s,
                session_timeout_s=settings.session_timeout_s,
            ),
            sink,
            stop,
        )
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)


class PrometheusSink(Collector):
    """Keeps the model for both sides: the loop that reads Kafka, and the threads that answer scrapes."""

    def __init__(self, cluster: str) -> None:
        self._model = Model(cluster)
        self._lock = threading.Lock()
        self._caught_up = False
        self._taken = 0

    def check(self, record: msgspec.Struct) -> None:
        """Everything that is a record can be told."""

    def write(self, batch: Batch) -> None:
        """Take a batch into the model."""
        with self._lock:
            for offset, record in zip(batch.offsets, batch.records, strict=True):
                self._model.apply(offset, record)
            self._model.forget(time.time_ns() // 1000)
            self._taken += len(batch.records)

    def counts(self) -> Mapping[str, int]:
        """Records taken, for pipeline-health."""
        return {"records": self._taken}

    def caught_up(self) -> None:
        """From now on everything is told: the topics have been read up to their ends."""
        with self._lock:
            self._caught_up = True

    def collect(self) -> Iterable[Metric]:
        """The families of one scrape."""
        with self._lock:
            samples = self._model.samples(time.time_ns() // 1000, caught_up=self._caught_up)
        return _families(samples)


def _families(samples: list[Sample]) -> Iterable[Metric]:
    families: dict[Declared, CounterMetricFamily | GaugeMetricFamily] = {}
    for sample in samples:
        family = families.get(sample.metric)
        if family is None:
            family = families[sample.metric] = _family(sample.metric)
        family.add_metric(sample.labels, sample.value)
    return families.values()


def _family(declared: Declared) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if declared.is_counter else GaugeMetricFamily
    return kind(declared.name, declared.meaning, labels=declared.labels)
