"""Refuses records that are well-formed Avro and cannot be true: absurd times, sizes, indices, lengths."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.contract.calls import COLUMNS, Column
from streams.contract.errors import InvalidRecordError
from streams.contract.findings import Episode, Incident, JobState
from streams.contract.header import WatcherClock
from streams.contract.inputs import NcclThroughput, NicCounters, NodePods
from streams.contract.rosters import roster_of
from streams.contract.series import PackedSeries
from streams.contract.slices import JobSlice

MAX_TICKS = 600  # One minute in one record; the default flush is 5 ticks
MAX_TICK = 10**11  # The year 2286: beyond it a unit was mistaken
MAX_SEQ = 2**53  # A flush each 100 ms for 28 million years
MAX_INDEX = 1 << 16  # What a packed id can name
MAX_COMMUNICATORS = 4096
MAX_PORT = 255  # InfiniBand's port numbers are 8 bits
MAX_US = MAX_TICKS * 100_000
_ANY = (-(2**63), 2**63 - 1)
_COUNT = (0, MAX_SEQ)
# Per column of `rows`; what is said by the caller's arguments (operation, type, count, bytes) may be anything.
_BOUNDS = {
    Column.TICK_OFFSET: _COUNT,
    Column.COMMUNICATOR: _COUNT,
    Column.CALLS: _COUNT,
    Column.FAILED: _COUNT,
    Column.FIRST_SEQ: _COUNT,
    Column.LAST_SEQ: _COUNT,
    Column.TIMED: _COUNT,
    Column.FIRST_US: (-MAX_US, MAX_US),
    Column.LAST_US: (-MAX_US, MAX_US),
}
ROW_BOUNDS = tuple(_BOUNDS.get(column, _ANY) for column in Column)
_LOWEST = np.array([low for low, _ in ROW_BOUNDS], np.int64)
CACHED_IDS = 1024
LARGEST_CACHED_IDS = 4096  # Bytes: 4 MiB in all; a thousand rows in one record are rare
_ID = np.dtype("<u4")
_VALUE = np.dtype("<i8")


def check(record: msgspec.Struct) -> None:
    """Raise InvalidRecordError where a record's numbers contradict each other or common sense.

    What a tenant can forge (counts and bytes of NCCL calls) and what hardware says (raw counters) is not bounded
    here: one odd value must not cost a node its record. Those are for the step that uses them.
    """
    look = _CHECKS.get(type(record))
    if look is not None:
        look(record)


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRecordError(f"{name} is {value}, outside {low}..{high}")


def _span(record: NicCounters | NcclThroughput | JobSlice) -> None:
    _within("seq", record.seq, 0, MAX_SEQ)
    _within("ticks", record.ticks, 0, MAX_TICKS)
    _within("first_tick", record.first_tick, 0, MAX_TICK)


def _clock(node: str, clock: WatcherClock | None) -> None:
    if clock is None:
        if not node:
            raise InvalidRecordError("neither a node nor a watcher's clock: whose record is this?")
        return
    if node:
        raise InvalidRecordError("a watcher's clock on a node's record")
    _within("watcher_clock.tick", clock.tick, 0, MAX_TICK)
    _within("watcher_clock.seq", clock.seq, 0, MAX_SEQ)


def _node_record(record: NicCounters | NcclThroughput) -> None:
    _span(record)
    _clock(record.node, record.watcher_clock)
    _within("complete_through_tick", record.complete_through_tick, -1, MAX_TICK)
    if record.node and not record.ticks:
        raise InvalidRecordError("a node's record covers no tick")


def _series(name: str, packed: PackedSeries, ticks: int, entities: int, names: int) -> None:
    """The same refusals as `series.unpack`, without building the rows."""
    moving, steady = len(packed.moving_ids), len(packed.steady_ids)
    if moving % 4 or steady % 4:
        raise InvalidRecordError(f"{name}: ids of {moving} and {steady} bytes, not multiples of 4")
    if len(packed.moving_values) != 2 * ticks * moving:
        raise InvalidRecordError(f"{name}: {len(packed.moving_values)} bytes of moving values, not 8 x ticks x ids")
    if len(packed.steady_values) != 2 * steady:
        raise InvalidRecordError(f"{name}: {len(packed.steady_values)} bytes of steady values, not 8 x ids")
    if moving and not ticks:
        raise InvalidRecordError(f"{name}: moving rows over no tick")
    _indices(name, packed.moving_ids, entities, names)
    _indices(name, packed.steady_ids, entities, names)


def _pairs(name: str, raw: bytes, high: int, low: int) -> None:
    if len(raw) % 4:
        raise InvalidRecordError(f"{name}: {len(raw)} bytes of pairs, not a multiple of 4")
    _indices(name, raw, high, low)


def _indices(name: str, ids: bytes, high: int, low: int) -> None:
    if not ids:
        return
    highest, lowest = (_largest if len(ids) <= LARGEST_CACHED_IDS else _largest.__wrapped__)(ids)
    if highest >= high or lowest >= low:
        raise InvalidRecordError(f"{name} names an entity or a name that the record does not list")


@lru_cache(maxsize=CACHED_IDS)
def _largest(raw: bytes) -> tuple[int, int]:
    """The largest entity and the largest name. Which rows move comes back flush after flush, and node after node."""
    ids = np.frombuffer(raw, _ID)
    return int(ids.max()) >> 16, int((ids & 0xFFFF).max())


def _rows(raw: bytes, ticks: int, communicators: int) -> None:
    """The same refusals as `calls.unpack_rows`, and times and counts of calls that cannot be."""
    _within("communicators", communicators, 0, MAX_COMMUNICATORS)
    if len(raw) % (8 * COLUMNS):
        raise InvalidRecordError(f"rows hold {len(raw)} bytes, not a multiple of {8 * COLUMNS}")
    if not raw:
        return
    rows = np.frombuffer(raw, _VALUE).reshape(-1, COLUMNS)
    shifted = (rows - _LOWEST).view(np.uint64)  # Wraps: what lies below its lowest becomes larger than any range
    ranges = _ranges(ticks, communicators)
    outside = shifted > ranges
    if np.count_nonzero(outside):
        column = int(outside.any(axis=0).argmax())
        low, high = int(rows[:, column].min()), int(rows[:, column].max())
        raise InvalidRecordError(f"rows' {Column(column).name.lower()} is {low}..{high}: out of bounds")


@lru_cache(maxsize=CACHED_IDS)
def _ranges(ticks: int, communicators: int) -> NDArray[np.uint64]:
    """How far above its lowest value each column of `rows` may go."""
    highest = {Column.TICK_OFFSET: ticks - 1, Column.COMMUNICATOR: communicators - 1}
    if min(highest.values()) < 0:
        raise InvalidRecordError("rows over no tick, or of no communicator")
    return np.array([highest.get(Column(c), high) - low for c, (low, high) in enumerate(ROW_BOUNDS)], np.uint64)


def _nic_counters(record: NicCounters) -> None:
    _node_record(record)
    ports, counters, holders = len(record.ports), len(record.counter_names), len(record.holders)
    for name, size in (("ports", ports), ("counter_names", counters), ("holders", holders)):
        _within(name, size, 0, MAX_INDEX)
    for port in record.ports:
        _within("ports.port", port.port, 0, MAX_PORT)
    _series("counters", record.counters, record.ticks, ports, counters)
    for reset in record.resets:
        _within("resets.port", reset.port, 0, ports - 1)
        _within("resets.counter", reset.counter, 0, counters - 1)
        _within("resets.tick_offset", reset.tick_offset, 0, record.ticks - 1)
    _pairs("holdings", record.holdings, holders, len(record.devices))
    _series("features", record.features, record.ticks, len(record.holdings) // 4, len(record.feature_names))


def _nccl_throughput(record: NcclThroughput) -> None:
    _node_record(record)
    for communicator in record.communicators:
        _within("communicators.process", communicator.process, 0, len(record.processes) - 1)
    for event in record.events:
        _within("events.communicator", event.communicator, 0, len(record.communicators) - 1)
        _within("events.us", event.us, -MAX_US, MAX_US)
    _rows(record.rows, record.ticks, len(record.communicators))


def _node_pods(record: NodePods) -> None:
    _clock(record.node, record.watcher_clock)
    _within("seq", record.seq, 0, MAX_SEQ)
    _within("as_of_tick", record.as_of_tick, 0, MAX_TICK)
    for pod in record.pods:
        _within("pods.valid_from_tick", pod.valid_from_tick, 0, MAX_TICK)
        if pod.valid_to_tick is not None:
            _within("pods.valid_to_tick", pod.valid_to_tick, pod.valid_from_tick, MAX_TICK)
        if pod.gpus is not None:
            _within("pods.gpus", pod.gpus, 0, MAX_INDEX)


def _job_slice(record: JobSlice) -> None:
    _span(record)
    if record.progress is not None:
        _within("progress.input_partition", record.progress.input_partition, 0, MAX_INDEX)
        _within("progress.through_tick", record.progress.through_tick, -1, MAX_TICK)
    elif not record.job:
        raise InvalidRecordError("neither a job's slice nor progress")
    roster = roster_of(record.roster)
    _rows(record.rows, record.ticks, len(roster.communicators))
    entities = 2 * len(roster.ports) + len(roster.suspects)
    _series("features", record.features, record.ticks, entities, len(roster.feature_names))


def _finding(record: Episode | JobState | Incident) -> None:
    for name in ("alarm_tick", "onset_tick", "recovered_tick", "decided_tick", "as_of_tick", "tick"):
        value = getattr(record, name, None)
        if value is not None:
            _within(name, value, 0, MAX_TICK)


_CHECKS: dict[type, Callable[..., None]] = {
    NicCounters: _nic_counters,
    NcclThroughput: _nccl_throughput,
    NodePods: _node_pods,
    JobSlice: _job_slice,
    Episode: _finding,
    JobState: _finding,
    Incident: _finding,
}
