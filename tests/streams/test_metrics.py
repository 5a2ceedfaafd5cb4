"""What the worker counts is named as Prometheus expects, and every drop is a counter."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from streams.flow import Flow
from streams.kafka_log import LogMessage
from streams.metrics import StreamMetrics
from tests.services.prometheus import check_metrics
from tests.streams.fake_core import fake_makers
from tests.streams.test_flow import nic


def counted() -> CollectorRegistry:
    """A registry after one record, one repeat and one piece of rubbish."""
    registry = CollectorRegistry()
    flow = Flow(fake_makers(), partitions=1, metrics=StreamMetrics(registry))
    flow.take(nic(0))
    flow.take(nic(0))
    flow.take(LogMessage(topic="node-pods", partition=0, offset=0, value=b"?"))
    return registry


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("fabric_stream_records_total", {"topic": "nic-counters"}, 1),
        ("fabric_stream_repeated_total", {"topic": "nic-counters"}, 1),
        ("fabric_stream_dead_letters_total", {"topic": "node-pods"}, 1),
        ("fabric_stream_cold_starts_total", {"step": "join"}, 1),
        ("fabric_stream_apply_seconds_count", {"step": "join"}, 2),
    ],
)
def test_each_message_is_counted_by_what_became_of_it(name: str, labels: dict[str, str], value: int) -> None:
    assert counted().get_sample_value(name, labels) == value


@pytest.mark.services
def test_promtool_has_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    registry = counted()
    metrics = generate_latest(registry).decode()
    assert check_metrics(metrics) == ""
