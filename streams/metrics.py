"""What the stream worker counts: every record in, every finding out, and everything that was refused or skipped."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

APPLY_BUCKETS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


class StreamMetrics:
    """The worker's metrics on one registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.applied = Counter(
            "fabric_stream_records_total", "Records that a step has taken.", ["topic"], registry=registry
        )
        self.dead_letters = Counter(
            "fabric_stream_dead_letters_total", "Messages that could not be records.", ["topic"], registry=registry
        )
        self.repeated = Counter(
            "fabric_stream_repeated_total",
            "Messages read a second time after a rebalance, and skipped.",
            ["topic"],
            registry=registry,
        )
        self.published = Counter("fabric_stream_published_total", "Messages sent.", ["topic"], registry=registry)
        self.core = Gauge(
            "fabric_stream_core_events",
            "What the steps themselves count since they began cold: late ticks, unpaired records, and the like.",
            ["step", "what"],
            registry=registry,
        )
        self.partitions = Gauge(
            "fabric_stream_partitions", "Partitions that this worker holds.", ["topic"], registry=registry
        )
        self.cold_starts = Counter(
            "fabric_stream_cold_starts_total", "Steps that began without state.", ["step"], registry=registry
        )
        self.in_flight = Gauge(
            "fabric_stream_in_flight", "Messages taken whose results are not yet delivered.", registry=registry
        )
        self.apply_s = Histogram(
            "fabric_stream_apply_seconds",
            "Time to decode and apply one message.",
            ["step"],
            buckets=APPLY_BUCKETS_S,
            registry=registry,
        )
        self.behind_s = Gauge(
            "fabric_stream_behind_seconds",
            "Age of the newest message when it was taken, by the broker's clock: how far the worker is behind.",
            ["topic"],
            registry=registry,
        )
