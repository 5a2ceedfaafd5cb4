"""The records that the pipeline keeps about itself: state, dead-letters, pipeline-health."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from streams.contract.header import Gap, Source


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the log."""

    topic: str
    partition: int
    offset: int  # The next offset that has not been applied


class StateChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one step's serialised state, with the offsets it covers."""

    cluster: str
    step: str  # join, judge, correlate
    partition: int
    owner: int  # Grows at each assignment; an older owner's chunks are ignored
    snapshot: int  # Counts snapshots of one owner
    chunk: int
    chunks: int
    format: int  # Version of the serialised form
    covers: list[Position] = []
    body: bytes = b""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that could not be a record: its bytes, whole, and the reason."""

    component: str
    topic: str
    partition: int
    offset: int
    reason: str
    key: bytes | None = None
    value: bytes | None = None
    headers: dict[str, bytes] = {}
    broker_time_ms: int | None = None


class HealthStatus(StrEnum):
    """How a component does."""

    UNKNOWN = "unknown"
    OK = "ok"
    DEGRADED = "degraded"
    DOWN = "down"


class PipelineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What one component says of itself: what it does, what it cannot see, what it lost."""

    cluster: str
    component: str  # agent, pods, stream, sink-clickhouse, sink-prometheus, simulator
    instance: str  # Node, or host and pid
    epoch: str  # One life of the process
    us: int
    source: Source = Source.UNKNOWN
    status: HealthStatus = HealthStatus.UNKNOWN
    message: str = ""
    probes_wanted: int | None = None
    probes_attached: int | None = None
    gaps: list[Gap] = []
    counts: dict[str, int] = {}
