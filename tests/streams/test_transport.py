"""The transport is Faust's own, but for how long a lone message waits at the broker; and the app keeps its promises."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from faust.transport.drivers.aiokafka import Consumer
from prometheus_client import CollectorRegistry

from streams.app import WorkerSettings, build_app
from streams.contract.kafka import KafkaConnection
from streams.flow import Flow
from streams.metrics import StreamMetrics
from streams.transport import QuickConsumer, QuickConsumerThread, QuickTransport
from tests.streams.fake_core import fake_makers


def app_for(connection: KafkaConnection):  # type: ignore[no-untyped-def]
    metrics = StreamMetrics(CollectorRegistry())
    settings = WorkerSettings(connection=connection, cluster="c", partitions=4)
    return build_app(settings, Flow(fake_makers(), partitions=4, metrics=metrics), metrics)


async def test_a_lone_message_waits_50_ms_at_the_broker_and_all_else_is_as_faust_sets_it() -> None:
    app = app_for(KafkaConnection(bootstrap="127.0.0.1:1"))
    assert isinstance(app.transport, QuickTransport)
    consumer = app.consumer
    assert isinstance(consumer, QuickConsumer)
    thread = consumer._new_consumer_thread()
    assert isinstance(thread, QuickConsumerThread)
    thread.transport = app.transport

    quick = thread._create_worker_consumer(app.transport)
    stock_thread = Consumer._new_consumer_thread(consumer)
    stock = stock_thread._create_worker_consumer(app.transport)

    assert (quick._fetch_max_wait_ms, stock._fetch_max_wait_ms) == (50, 1500)
    same = ("_group_id", "_session_timeout_ms", "_heartbeat_interval_ms", "_auto_offset_reset", "_enable_auto_commit")
    assert [getattr(quick, name) for name in same] == [getattr(stock, name) for name in same]
    assert (quick._session_timeout_ms, quick._heartbeat_interval_ms) == (10_000, 1_000)
    await asyncio.gather(quick.stop(), stock.stop())


async def test_co_partitioned_topics_are_assigned_together() -> None:
    """Round robin would give one node's counters and calls to different workers."""
    app = app_for(KafkaConnection(bootstrap="127.0.0.1:1"))
    consumer = app.consumer
    thread = consumer._new_consumer_thread()
    made = thread._create_worker_consumer(app.transport)
    assert thread._assignor is app.assignor
    assert thread._assignor is not RoundRobinPartitionAssignor
    await made.stop()


async def test_the_app_listens_nowhere_and_creates_no_topic() -> None:
    conf = app_for(KafkaConnection(bootstrap="a:1,b:2")).conf
    assert (conf.web_enabled, conf.topic_allow_declare, conf.topic_disable_leader) == (False, False, True)
    assert [str(url) for url in conf.broker] == ["kafka://a:1", "kafka://b:2"]


async def test_user_and_password_reach_faust_and_are_not_shown() -> None:
    app = app_for(
        KafkaConnection(
            bootstrap="a:1", security_protocol="SASL_PLAINTEXT", sasl_username="me", sasl_password="hush-hush"
        )
    )
    credentials = app.conf.broker_credentials
    assert (credentials.username, credentials.password, credentials.mechanism.value) == (
        "me",
        "hush-hush",
        "SCRAM-SHA-512",
    )
    assert "hush" not in repr(credentials)


@pytest.mark.parametrize("sasl", [False, True])
async def test_tls_reaches_faust(sasl: bool, tmp_path: Path) -> None:
    user = {"sasl_username": "me", "sasl_password": "hush"} if sasl else {}
    connection = KafkaConnection(bootstrap="a:1", security_protocol="SASL_SSL" if sasl else "SSL", **user)  # type: ignore[arg-type]
    credentials = app_for(connection).conf.broker_credentials
    assert credentials.protocol.value == ("SASL_SSL" if sasl else "SSL")
    assert (credentials.ssl_context if sasl else credentials.context) is not None
