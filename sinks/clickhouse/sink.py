"""The ClickHouse sink: every topic but slices and state, as rows, each batch once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import structlog

from sinks.batches import DEFAULT_LIMITS, Batch, Limits
from sinks.clickhouse.call_rows import call_rows
from sinks.clickhouse.columns import Rows
from sinks.clickhouse.flush_rows import ReadSets, flush_rows, read_set_rows
from sinks.clickhouse.holder_rows import holder_run_rows
from sinks.clickhouse.migrate import migrate
from sinks.clickhouse.port_rows import port_rows, port_run_rows
from sinks.clickhouse.record_rows import (
    dead_letter_rows,
    episode_rows,
    health_rows,
    incident_rows,
    job_state_rows,
    node_rows,
    pod_rows,
)
from sinks.clickhouse.storable import check_storable
from sinks.clickhouse.store import Store
from sinks.consume import ConsumeSettings, consume
from streams.contract.errors import RetryableError
from streams.contract.findings import Episode, Incident, JobState
from streams.contract.inputs import NcclThroughput, NicCounters, NodePods
from streams.contract.kafka import KafkaConnection
from streams.contract.plumbing import DeadLetter, PipelineHealth
from streams.contract.topics import (
    DEAD_LETTERS,
    EPISODES,
    INCIDENTS,
    JOB_STATES,
    NCCL_THROUGHPUT,
    NIC_COUNTERS,
    NODE_PODS,
    PIPELINE_HEALTH,
)
from streams.contract.wire import SchemaIds

COMPONENT = "sink-clickhouse"
TOPICS = (NIC_COUNTERS, NCCL_THROUGHPUT, NODE_PODS, JOB_STATES, EPISODES, INCIDENTS, DEAD_LETTERS, PIPELINE_HEALTH)
CONNECT_AGAIN_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickHouseSettings:
    """Where to read from, and where to write to."""

    kafka: KafkaConnection
    cluster: str
    instance: str
    dsn: str  # chdb:///path, or http(s)://user:password@host:port/database
    group: str = "fabric-sentinel-clickhouse"
    limits: Limits = DEFAULT_LIMITS
    registry: SchemaIds | None = None
    health_every_s: float = 5.0
    retry_first_s: float = 0.5
    retry_most_s: float = 30.0
    session_timeout_s: float = 45.0


def run(settings: ClickHouseSettings, stop: threading.Event) -> None:
    """Bring the store's schema up to date, then write until `stop`; waits for a server that is not there yet."""
    store = _opened(settings.dsn, stop)
    if store is None:
        return
    try:
        consume(
            ConsumeSettings(
                kafka=settings.kafka,
                cluster=settings.cluster,
                component=COMPONENT,
                instance=settings.instance,
                group=settings.group,
                topics=TOPICS,
                limits=settings.limits,
                registry=settings.registry,
                health_every_s=settings.health_every_s,
                retry_first_s=settings.retry_first_s,
                retry_most_s=settings.retry_most_s,
                session_timeout_s=settings.session_timeout_s,
            ),
            ClickHouseSink(store),
            stop,
        )
    finally:
        store.close()


class ClickHouseSink:
    """Writes batches; see sinks.consume.Sink."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._flatten = Flatten()
        self._counts: Counter[str] = Counter()
        self._prepared: tuple[str, Sequence[Rows]] = ("", ())

    def check(self, record: msgspec.Struct) -> None:
        """Raise InvalidRecordError where a time does not fit into a table."""
        check_storable(record)

    def write(self, batch: Batch) -> None:
        """One insert per table under the batch's token; what is already there stays as it is."""
        if self._prepared[0] != batch.token:
            self._prepared = (batch.token, self._flatten(batch))
        for rows in self._prepared[1]:
            self._store.insert(rows, batch.token)
        for rows in self._prepared[1]:
            self._counts[f"rows_{rows.table}"] += rows.count
        self._flatten.stored()
        self._prepared = ("", ())

    def counts(self) -> Mapping[str, int]:
        """Rows written, by table."""
        return dict(self._counts)


class Flatten:
    """Batches to rows; remembers which read sets the store has."""

    def __init__(self) -> None:
        self._sets = ReadSets()
        self._stored: set[int] = set()
        self._new: set[int] = set()

    def __call__(self, batch: Batch) -> list[Rows]:
        """The rows of a batch, in the order in which they must be written."""
        if batch.topic in (NIC_COUNTERS, NCCL_THROUGHPUT):
            return self._samples(batch)
        if batch.topic == NODE_PODS:
            lists = [record for record in _of(NodePods, batch.records) if record.node]
            return [pod_rows(lists), node_rows(lists)]
        return [_finding_rows(batch)]

    def stored(self) -> None:
        """The rows given last are in the store."""
        self._stored |= self._new
        self._new = set()

    def _samples(self, batch: Batch) -> list[Rows]:
        if batch.topic == NIC_COUNTERS:
            return self._nic(batch)
        calls, offsets = _on_nodes(_of(NcclThroughput, batch.records), batch.offsets)
        return [call_rows(calls), flush_rows(batch.topic.name, calls, offsets, batch.partition, ())] if calls else []

    def _nic(self, batch: Batch) -> list[Rows]:
        records, offsets = _on_nodes(_of(NicCounters, batch.records), batch.offsets)
        if not records:
            return []
        sets = [self._sets.of(record) for record in records]
        new = {read.number: read for read in sets if read.number not in self._stored}
        self._new = set(new)
        return [
            read_set_rows(new.values()),
            port_run_rows(records),
            holder_run_rows(records),
            port_rows(records),
            flush_rows(batch.topic.name, records, offsets, batch.partition, sets),
        ]


Record = TypeVar("Record", bound=msgspec.Struct)
NodeRecord = TypeVar("NodeRecord", NicCounters, NcclThroughput)


def _of(kind: type[Record], records: Sequence[msgspec.Struct]) -> list[Record]:
    """The records as what they are: a topic carries one kind."""
    return [record for record in records if isinstance(record, kind)]


def _on_nodes(records: Sequence[NodeRecord], offsets: Sequence[int]) -> tuple[list[NodeRecord], list[int]]:
    """Without the watcher's clock records."""
    pairs = [(record, offset) for record, offset in zip(records, offsets, strict=True) if record.node]
    return [record for record, _ in pairs], [offset for _, offset in pairs]


def _finding_rows(batch: Batch) -> Rows:
    if batch.topic == INCIDENTS:
        return incident_rows(_of(Incident, batch.records))
    if batch.topic == EPISODES:
        return episode_rows(_of(Episode, batch.records))
    if batch.topic == JOB_STATES:
        return job_state_rows(_of(JobState, batch.records), batch.offsets)
    if batch.topic == DEAD_LETTERS:
        return dead_letter_rows(_of(DeadLetter, batch.records))
    return health_rows(_of(PipelineHealth, batch.records))


def _opened(dsn: str, stop: threading.Event) -> Store | None:
    """The store with its schema in place; waits while it is away, and says so once."""
    log = structlog.get_logger().bind(component=COMPONENT)
    told = False
    while not stop.is_set():
        try:
            store = Store(dsn)
            applied = migrate(store)
        except RetryableError as error:
            if not told:
                log.warning("waiting for ClickHouse", reason=str(error))
            told = True
            stop.wait(CONNECT_AGAIN_S)
        else:
            log.info("ClickHouse is ready", migrations_applied=applied)
            return store
    return None
