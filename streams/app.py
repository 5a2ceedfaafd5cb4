"""The Faust worker: join, judge and correlate as agents around the pure core, at least once.

State is in memory. A worker that ends, killed or not, loses no message, but what it had learned: whoever takes its
partitions over (10 s after a kill) begins cold, knows the pods again from node-pods, and judges a job only after some
thirty of its steps. An episode that was open stays at its last revision, `suspected`, and is never billed; a slowdown
that was there already when the new worker began to learn is taken for normal. Measured on real Kafka by
tests/streams/test_worker_on_kafka.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import faust
from mode.supervisors import CrashingSupervisor
from prometheus_client import start_http_server
from yarl import URL

from streams.complaints import Complaints
from streams.contract.errors import RetryableError
from streams.contract.kafka import KafkaConnection
from streams.contract.plumbing import HealthStatus, PipelineHealth
from streams.contract.registry import Registry, register_all
from streams.contract.topics import (
    ALL,
    DEFAULT_PARTITIONS,
    EPISODES,
    INPUTS,
    JOB_SLICES,
    JOB_STATES,
    NODE_PODS,
    PIPELINE_HEALTH,
)
from streams.contract.wire import Encoder, SchemaIds
from streams.core.settings import CoreSettings
from streams.core_steps import core_makers
from streams.delivery import Deliveries
from streams.flow import CORRELATE, JOIN, JUDGE, PRODUCED, Flow, Makers, Outgoing
from streams.kafka_log import LogMessage, newest_before_commit
from streams.metrics import StreamMetrics
from streams.topics_admin import partition_counts
from streams.transport import QuickTransport

log = logging.getLogger(__name__)

COMPONENT = "stream"
GROUP = "fabric-sentinel-stream"
# A dead worker's partitions move after this long; below ~6 s a long garbage collection or a paused VM looks dead.
SESSION_TIMEOUT_S = 10.0
HEARTBEAT_S = 1.0  # A tenth of the session: nine may be lost
REQUEST_TIMEOUT_S = 30.0  # Faust wants it above the session timeout; a broker's restart takes less
COMMIT_INTERVAL_S = 1.0  # What a kill repeats is what came since
# Results wait this long for an absent broker before the worker gives up and is restarted: an hour-long outage passes.
DELIVERY_TIMEOUT_S = 3600.0
MAX_REQUEST_BYTES = 2 * 1024 * 1024  # A dead letter holds a whole message of up to 1 MiB
SETTLE_EVERY_S = 0.1
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 10.0
ASK_TIMEOUT_S = 3.0
_INPUT_NAMES = frozenset(topic.name for topic in INPUTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a stream worker is told at its start."""

    connection: KafkaConnection
    cluster: str
    core: CoreSettings = field(default_factory=CoreSettings)
    partitions: int = DEFAULT_PARTITIONS
    group: str = GROUP
    static_member: str | None = None  # Set: a restart within the session timeout moves no partition
    registry: SchemaIds | None = None
    registered_ids: Mapping[str, int] | None = (
        None  # By topic; None: registered at the start, where there is a registry
    )
    health_every_s: float = 5.0
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"


class WrongTopicsError(Exception):
    """The topics are not as the settings say: a person must decide, waiting does not help."""


def build_app(settings: WorkerSettings, flow: Flow, metrics: StreamMetrics) -> faust.App:
    """The Faust app around a flow; it declares no topics, keeps no tables, and opens no port."""
    app = faust.App(
        settings.group,
        broker=[URL(url) for url in settings.connection.broker_urls()],
        broker_credentials=_credentials(settings.connection),
        store="memory://",
        web_enabled=False,  # Faust's own would listen on 0.0.0.0:6066
        topic_allow_declare=False,  # `topics apply` creates them, with their replication and retention
        topic_disable_leader=True,
        topic_partitions=settings.partitions,
        stream_wait_empty=False,
        agent_supervisor=CrashingSupervisor,  # A restarted agent would skip the message it failed on, for ever
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=settings.static_member,
        broker_session_timeout=SESSION_TIMEOUT_S,
        broker_heartbeat_interval=HEARTBEAT_S,
        broker_request_timeout=REQUEST_TIMEOUT_S,
        broker_commit_interval=COMMIT_INTERVAL_S,
        producer_request_timeout=DELIVERY_TIMEOUT_S,
        producer_compression_type="zstd",
        producer_max_request_size=MAX_REQUEST_BYTES,
    )
    app.transport = QuickTransport(app.conf.broker_consumer, app, loop=app.loop)
    _Agents(app, settings, flow, metrics).declare()
    return app


class _Agents:
    """The agents, their deliveries and their heartbeat."""

    def __init__(self, app: faust.App, settings: WorkerSettings, flow: Flow, metrics: StreamMetrics) -> None:
        self._app = app
        self._settings = settings
        self._flow = flow
        self._metrics = metrics
        self._deliveries = {name: Deliveries() for name in (JOIN, JUDGE, CORRELATE)}
        self._targets = {topic.name: self._channel(topic.name) for topic in ALL}
        self._held: set[tuple[str, int]] = set()
        self._told: set[int] = set()  # Input partitions whose known pods the join has been given
        self._epoch = uuid.uuid4().hex[:12]
        self._encode_health = Encoder(PIPELINE_HEALTH)
        self._complaints = Complaints()

    def declare(self) -> None:
        """Register everything with the app."""
        self._complaints.attach()
        for name, topics in ((JOIN, INPUTS), (JUDGE, (JOB_SLICES,)), (CORRELATE, (EPISODES, JOB_STATES))):
            source = self._channel(*(topic.name for topic in topics))
            self._app.agent(source, name=name)(self._agent(name))
        self._app.timer(SETTLE_EVERY_S, name="settle")(self._settle)
        self._app.timer(self._settings.health_every_s, name="health")(self._tell_health)
        self._app.on_partitions_revoked.connect(self._on_revoked)
        self._app.on_partitions_assigned.connect(self._on_assigned)

    def _channel(self, *names: str) -> faust.TopicT[bytes]:
        return self._app.topic(
            *names, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", allow_empty=True
        )

    def _agent(self, name: str) -> Callable[[faust.StreamT[bytes]], object]:
        async def work(stream: faust.StreamT[bytes]) -> None:
            unacknowledged = stream.noack()
            async for event in unacknowledged.events():
                results = await self._take(_plain(event.message))
                if results is None:
                    continue
                if event.message.timestamp is not None:
                    self._metrics.behind_s.labels(event.message.topic).set(time.time() - event.message.timestamp)
                sent = [await self._send(out) for out in results]
                await self._deliveries[name].add(partial(unacknowledged.ack, event), sent)

        return work

    async def _take(self, message: LogMessage) -> list[Outgoing] | None:
        """What a message leads to; None if its partition went to somebody else meanwhile.

        Waits, with one log line per trouble, while the brokers or a registry that it needs are away.
        """
        told, wait_s = "", FIRST_WAIT_S
        while True:
            try:
                begins = message.topic in _INPUT_NAMES and self._flow.is_cold(message.topic, message.partition)
                if begins and self._holds(message):
                    await self._tell_pods()
                return self._flow.take(message) if self._holds(message) else None
            except RetryableError as error:
                if str(error) != told:
                    log.warning("waiting: %s", error)
                    told = str(error)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _tell_pods(self) -> None:
        """Give partitions that begin cold the pods that are known: lists are re-sent every five minutes only."""
        cold = {number for topic, number in self._held if topic == NODE_PODS.name and self._flow.is_cold(topic, number)}
        cold -= self._told
        if not cold:
            return
        known = await asyncio.to_thread(
            newest_before_commit, self._settings.connection, NODE_PODS.name, group=self._settings.group, partitions=cold
        )
        for message in known:
            if self._holds(message):
                self._flow.take(message)
        self._told |= cold

    def _holds(self, message: LogMessage) -> bool:
        place = (message.topic, message.partition)
        if place not in self._held:  # The first messages may come before Faust says that they will
            self._held = {(held.topic, held.partition) for held in self._app.consumer.assignment()}
        return place in self._held

    async def _send(self, out: Outgoing) -> asyncio.Future[object]:
        self._metrics.published.labels(out.topic).inc()
        sent: asyncio.Future[object] = await self._targets[out.topic].send(
            key=out.key, value=out.value, partition=out.partition, headers=dict(out.headers)
        )
        return sent

    async def _settle(self) -> None:
        self._complaints.look(time.time())
        for deliveries in self._deliveries.values():
            await deliveries.settle()
        self._metrics.in_flight.set(sum(map(len, self._deliveries.values())))

    async def _on_revoked(self, *_: object, **__: object) -> None:
        self._held = set()
        for deliveries in self._deliveries.values():
            deliveries.forget()

    async def _on_assigned(self, _app: object, assigned: set[faust.types.TP], **_: object) -> None:
        self._held = {(place.topic, place.partition) for place in assigned}
        self._flow.hold(self._held)
        self._told &= {number for topic, number in self._held if topic == NODE_PODS.name}
        per_topic = dict.fromkeys(self._targets, 0)
        for place in assigned:
            per_topic[place.topic] = per_topic.get(place.topic, 0) + 1
        for topic, number in per_topic.items():
            self._metrics.partitions.labels(topic).set(number)
        log.info("partitions assigned: %s", {topic: number for topic, number in per_topic.items() if number})

    async def _tell_health(self) -> None:
        counts = {}
        for step, counted in self._flow.counts().items():
            for what, number in counted.items():
                self._metrics.core.labels(step, what).set(number)
                counts[f"{step}.{what}"] = number
        await self._send(self._health(counts))

    def _health(self, counts: dict[str, int]) -> Outgoing:
        instance = f"{socket.gethostname()}:{os.getpid()}"
        failures = self._flow.failures
        record = PipelineHealth(
            cluster=self._settings.cluster,
            component=COMPONENT,
            instance=instance,
            epoch=self._epoch,
            us=time.time_ns() // 1000,
            status=HealthStatus.DEGRADED if failures else HealthStatus.OK,
            message=f"{failures} records upset a step: see dead-letters" if failures else "",
            counts=counts,
        )
        return Outgoing(
            topic=PIPELINE_HEALTH.name,
            key=f"{COMPONENT}/{instance}".encode(),
            value=self._encode_health(record),
            headers=self._encode_health.headers,
        )


def run_worker(settings: WorkerSettings, *, makers: Makers | None = None) -> None:
    """Wait for brokers and topics, then work until SIGTERM or SIGINT; exits the process as Faust does.

    Raises WrongTopicsError where topics have another partition count than the settings say.
    """
    wait_for_topics(settings.connection, settings.partitions)
    metrics = StreamMetrics()
    if settings.metrics_port is not None:
        start_http_server(settings.metrics_port, addr=settings.metrics_host)
    flow = Flow(
        makers or core_makers(settings.core, input_partitions=settings.partitions),
        partitions=settings.partitions,
        metrics=metrics,
        registry=settings.registry,
        registered_ids=_registered_ids(settings),
    )
    app = build_app(settings, flow, metrics)
    for chatty in ("faust", "mode", "streams.transport"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    worker = faust.Worker(app, override_logging=False, redirect_stdouts=False, quiet=True, stdout=sys.stderr)
    worker.spinner = None  # It writes control characters even where nobody looks
    worker.execute_from_commandline()


def _registered_ids(settings: WorkerSettings) -> Mapping[str, int]:
    """Registry ids of what the worker writes: as told, else registered now; waits for a registry that is away."""
    if settings.registered_ids is not None or not isinstance(settings.registry, Registry):
        return settings.registered_ids or {}
    told, wait_s = "", FIRST_WAIT_S
    while True:
        try:
            return register_all(settings.registry, PRODUCED)
        except RetryableError as error:
            if str(error) != told:
                log.warning("waiting: %s", error)
                told = str(error)
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def wait_for_topics(
    connection: KafkaConnection, partitions: int, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Return once brokers answer and every topic is there; one log line per change, longer waits each time.

    Raises WrongTopicsError for a partition count that differs.
    """
    told, wait_s = "", FIRST_WAIT_S
    while trouble := _trouble(connection, partitions):
        if trouble != told:
            log.warning("waiting: %s", trouble)
            told = trouble
        sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)
    if told:
        log.info("brokers and topics are there")


def _trouble(connection: KafkaConnection, partitions: int) -> str:
    """Why the worker cannot start yet; empty when it can."""
    try:
        there = partition_counts(connection, timeout_s=ASK_TIMEOUT_S)
    except RetryableError:
        return f"no broker answers at {connection.bootstrap}"
    wrong = [
        f"{topic.name} has {there[topic.name]} partitions, not {topic.partitions(partitions)}"
        for topic in ALL
        if topic.name in there and there[topic.name] != topic.partitions(partitions)
    ]
    if wrong:
        raise WrongTopicsError(
            f"{'; '.join(wrong)}: set the partition count to what the topics have, or make new topics"
        )
    missing = [topic.name for topic in ALL if topic.name not in there]
    return f"no topics {', '.join(missing)}: run `fabric-sentinel topics apply`" if missing else ""


def _credentials(connection: KafkaConnection) -> faust.types.auth.CredentialsT | None:
    context = connection.tls_context()
    if connection.uses_sasl:
        return faust.SASLCredentials(
            username=connection.sasl_username,
            password=connection.sasl_password,
            mechanism=connection.sasl_mechanism,
            ssl_context=context,
        )
    return faust.SSLCredentials(context) if context is not None else None


def _plain(message: faust.types.Message) -> LogMessage:
    headers = message.headers or []
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return LogMessage(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        broker_time_ms=None if message.timestamp is None else round(message.timestamp * 1000),
        key=message.key,
        value=message.value,
        headers={name: value for name, value in pairs if value is not None},
    )
