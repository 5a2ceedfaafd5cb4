"""What node agents and the pod watcher count, for Prometheus, on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from producers.publish import PublishCounts

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One metric: a counter where `is_counter`, with at most one label."""

    name: str
    meaning: str
    is_counter: bool = True
    label: str = ""


PUBLISH = (
    Declared(name="publish_accepted_messages", meaning="Messages handed to the publisher."),
    Declared(name="publish_delivered_messages", meaning="Messages that a broker acknowledged."),
    Declared(name="publish_returned_messages", meaning="Messages taken back while the broker was away."),
    Declared(name="publish_dropped_messages", meaning="Oldest messages dropped to keep within the buffer's bound."),
    Declared(name="publish_dropped_bytes", meaning="Bytes of the dropped messages."),
    Declared(name="publish_refused_messages", meaning="Messages refused for good: too large, no topic, no permission."),
    Declared(name="publish_broker_errors", meaning="Errors that the Kafka client reported."),
    Declared(name="publish_unencodable_records", meaning="Records that did not fit their schema."),
    Declared(name="publish_waiting_messages", meaning="Messages not yet handed to the client.", is_counter=False),
    Declared(name="publish_waiting_bytes", meaning="Bytes of the waiting messages.", is_counter=False),
    Declared(name="publish_broker_away", meaning="1 while no message gets through.", is_counter=False),
)
AGENT = (
    Declared(name="agent_flushes", meaning="Flushes written: one record to each node topic."),
    Declared(name="agent_late_ticks", meaning="Ticks in which nothing was sampled because the loop came too late."),
    Declared(name="agent_epochs", meaning="Agent epochs begun: one, and one per step of the wall clock."),
    Declared(name="agent_late_rows", meaning="NCCL calls counted after their flush had gone; they are lost."),
    Declared(name="agent_lost_events", meaning="Updates that full kernel maps refused.", label="source"),
    Declared(name="agent_source_errors", meaning="Samples that a source could not take.", label="source"),
    Declared(name="agent_probes_wanted", meaning="Kernel probes this agent wants.", is_counter=False),
    Declared(name="agent_probes_attached", meaning="Kernel probes that are attached.", is_counter=False),
    Declared(name="agent_gaps", meaning="Things that cannot be seen here.", is_counter=False, label="source"),
)
PODS = (
    Declared(name="pods_source_problems", meaning="Times that the source of pods became unreadable."),
    Declared(name="pods_source_broken", meaning="1 while the source of pods cannot be read.", is_counter=False),
    Declared(name="pods_nodes", meaning="Nodes that have pods or facts.", is_counter=False),
)
ALL = (*PUBLISH, *AGENT, *PODS)
_BY_NAME = {declared.name: declared for declared in ALL}

Values = Mapping[str, float | Mapping[str, float]]
"""A number per metric name, or per label value where the metric has a label."""


def publish_values(counts: PublishCounts, *, unencodable: int) -> dict[str, float | Mapping[str, float]]:
    """The publisher's numbers under their metric names."""
    return {
        "publish_accepted_messages": counts.accepted,
        "publish_delivered_messages": counts.delivered,
        "publish_returned_messages": counts.returned,
        "publish_dropped_messages": counts.dropped,
        "publish_dropped_bytes": counts.dropped_bytes,
        "publish_refused_messages": counts.refused,
        "publish_broker_errors": counts.broker_errors,
        "publish_unencodable_records": unencodable,
        "publish_waiting_messages": counts.waiting,
        "publish_waiting_bytes": counts.waiting_bytes,
        "publish_broker_away": int(counts.away),
    }


class _Reads(Collector):
    def __init__(self, read: Callable[[], Values]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """One family per value, read at the time of the scrape."""
        for name, value in self._read().items():
            yield _family(_BY_NAME[name], value)


class Exporter:
    """Serves what `read` returns at each scrape; without a port it does nothing."""

    def __init__(self, read: Callable[[], Values], *, port: int | None, host: str = LOOPBACK) -> None:
        self._server: tuple[WSGIServer, Thread] | None = None
        if port is None:
            return
        registry = CollectorRegistry()
        registry.register(_Reads(read))
        self._server = start_http_server(port, addr=host, registry=registry)

    @property
    def port(self) -> int | None:
        """The port that answers, which the system chose where 0 was asked for."""
        return None if self._server is None else self._server[0].server_port

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            server, thread = self._server
            self._server = None
            server.shutdown()
            server.server_close()
            thread.join(5.0)


def _family(declared: Declared, value: float | Mapping[str, float]) -> Metric:
    labels: Sequence[str] = (declared.label,) if declared.label else ()
    kind = CounterMetricFamily if declared.is_counter else GaugeMetricFamily
    family = kind(f"fabric_{declared.name}", declared.meaning, labels=labels)
    if isinstance(value, Mapping):
        for label, number in sorted(value.items()):
            family.add_metric([label], number)
    else:
        family.add_metric([], value)
    return family
