"""From NCCL calls and births of communicators to the processes, communicators and rows of a flush."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from producers.encode import NcclFlush
from producers.kernel.nccl_rows import CallRow, CommFunction
from producers.kernel.nccl_rows import CommEvent as KernelCommEvent
from streams.contract.calls import COLUMNS, Column, Timing
from streams.contract.inputs import CommEvent, CommEventKind, Communicator, Process
from streams.contract.ticks import us_of_tick

DescribeProcess = Callable[[int, int], Process]

KEPT_TICKS = 600  # a communicator whose birth we did not see is listed for a minute after its last call
UNKNOWN_BYTES = -1
NO_DTYPE = -1
LARGEST = 2**63 - 1  # a count is a size_t; Avro's long is signed
_ENDS = frozenset({CommFunction.DESTROY, CommFunction.ABORT, CommFunction.PROCESS_EXIT})
_FROM_PARENT = frozenset({CommFunction.SPLIT, CommFunction.SHRINK, CommFunction.GROW})

CommKey = tuple[int, int]
"""Process id and pointer."""


@dataclass(slots=True, kw_only=True)
class _Known:
    pid: int
    cgroup_id: int
    comm: str
    rank: int | None = None
    nranks: int | None = None
    is_born: bool = False
    has_died: bool = False
    newest_tick: int = 0
    children: int = 0


class NcclTally:
    """Remembers which communicators live; `take` turns a flush's calls and events into its record's parts."""

    def __init__(self, describe: DescribeProcess) -> None:
        self._describe = describe
        self._known: dict[CommKey, _Known] = {}
        self._replaced: list[_Known] = []  # their pointer was given to another one in this flush
        self.late_rows = 0

    def take(
        self, rows: Sequence[CallRow], events: Sequence[KernelCommEvent], *, first_tick: int, ticks: int
    ) -> NcclFlush:
        """The parts of one record.

        Rows of earlier ticks that were counted late go to the first tick, with their own times, which are then
        negative: no call is lost.
        """
        happened = [found for event in sorted(events, key=lambda one: one.returned_ns) if (found := self._note(event))]
        for row in rows:
            known = self._of_row(row)
            known.newest_tick = max(known.newest_tick, row.tick)
        self.late_rows += sum(row.tick < first_tick for row in rows)
        listed = self._listed(first_tick)
        place = {id(known): index for index, known in enumerate(listed)}
        processes = list(dict.fromkeys((known.pid, known.cgroup_id) for known in listed))
        flush = NcclFlush(
            processes=[self._describe(pid, cgroup_id) for pid, cgroup_id in processes],
            communicators=[
                Communicator(
                    process=processes.index((known.pid, known.cgroup_id)),
                    comm=known.comm,
                    rank=known.rank,
                    nranks=known.nranks,
                )
                for known in listed
            ],
            rows=_matrix([(place[id(self._of_row(row))], row) for row in rows], first_tick, ticks),
            events=[
                CommEvent(
                    kind=CommEventKind.BORN if event.is_birth else CommEventKind.DIED,
                    communicator=place[id(known)],
                    us=event.returned_ns // 1000 - us_of_tick(first_tick),
                    failed=event.failed,
                )
                for known, event in happened
            ],
        )
        self._known = {key: known for key, known in self._known.items() if not known.has_died}
        return flush

    def _note(self, event: KernelCommEvent) -> tuple[_Known, KernelCommEvent] | None:
        key = event.pid, event.comm_ptr
        if event.is_birth:
            return self._born(event), event
        if event.function not in _ENDS or event.failed or key not in self._known:
            return None
        self._known[key].has_died = True
        return self._known[key], event

    def _born(self, event: KernelCommEvent) -> _Known:
        """A failed birth has no pointer, nor have the calls that follow it: its own words name them."""
        key, comm = (event.pid, event.comm_ptr), self._name(event)
        before = self._known.get(key)
        if before is not None and before.comm == comm and not before.has_died:
            return before
        if before is not None:
            self._replaced.append(before)
        self._known[key] = _Known(
            pid=event.pid,
            cgroup_id=event.cgroup_id,
            comm=comm,
            rank=event.rank,
            nranks=event.nranks,
            is_born=not event.failed,
            newest_tick=event.returned_ns // 100_000_000,
        )
        return self._known[key]

    def _name(self, event: KernelCommEvent) -> str:
        """The same on all ranks: the unique id's hash, or what the parent and the call's number on it say."""
        if event.unique_id_hash is not None:
            return event.unique_id_hash
        parent = self._known.get((event.pid, event.parent_ptr or 0))
        if event.function in _FROM_PARENT and parent is not None and ":" not in parent.comm:
            parent.children += 1
            words = f"{parent.comm}/{event.function.name}/{parent.children}/{event.color}"
            return "0x" + hashlib.sha256(words.encode()).hexdigest()[:16]
        return _own_name(event.pid, event.comm_ptr)

    def _of_row(self, row: CallRow) -> _Known:
        key = row.pid, row.comm_ptr
        known = self._known.get(key)
        if known is None:
            known = _Known(pid=row.pid, cgroup_id=row.cgroup_id, comm=_own_name(*key))
            self._known[key] = known
        return known

    def _listed(self, first_tick: int) -> list[_Known]:
        old = [
            key
            for key, known in self._known.items()
            if not known.is_born and known.newest_tick < first_tick - KEPT_TICKS
        ]
        for key in old:
            del self._known[key]
        listed, self._replaced = [*self._replaced, *self._known.values()], []
        return listed


def _own_name(pid: int, comm_ptr: int) -> str:
    return f"{pid}:{comm_ptr:x}"


def _matrix(placed: Sequence[tuple[int, CallRow]], first_tick: int, ticks: int) -> NDArray[np.int64]:
    """Rows with equal (tick, communicator, operation, type, count) added up, in the order of their ticks."""
    found: dict[tuple[int, int, int, int, int], list[int]] = {}
    for place, row in placed:
        offset = min(max(row.tick - first_tick, 0), ticks - 1)
        values = _values(place, row, offset, first_tick)
        key = offset, place, int(row.op), values[Column.DTYPE], values[Column.COUNT]
        found[key] = _added(found[key], values) if key in found else values
    return np.array([found[key] for key in sorted(found)], np.int64).reshape(-1, COLUMNS)


def _values(place: int, row: CallRow, offset: int, first_tick: int) -> list[int]:
    call_bytes = row.call_bytes
    first_us = us_of_tick(first_tick)
    values = [0] * COLUMNS
    values[Column.TICK_OFFSET] = offset
    values[Column.COMMUNICATOR] = place
    values[Column.OP] = int(row.op)
    values[Column.DTYPE] = NO_DTYPE if row.dtype is None else row.dtype
    values[Column.COUNT] = min(row.count, LARGEST)
    values[Column.BYTES] = UNKNOWN_BYTES if call_bytes is None else min(call_bytes, LARGEST)
    values[Column.CALLS] = row.calls
    values[Column.FAILED] = row.failed
    values[Column.FIRST_SEQ] = row.first_seq
    values[Column.LAST_SEQ] = row.last_seq
    if row.calls:
        values[Column.FIRST_US] = row.first_ns // 1000 - first_us
        values[Column.LAST_US] = row.last_ns // 1000 - first_us
    values[Column.TIMING] = int(Timing.ENQUEUE)
    return values


def _added(one: list[int], other: list[int]) -> list[int]:
    total = list(one)
    for column in (Column.CALLS, Column.FAILED):
        total[column] += other[column]
    if not one[Column.CALLS] or not other[Column.CALLS]:  # times and numbers of a row without calls say nothing
        called = one if one[Column.CALLS] else other
        for column in (Column.FIRST_SEQ, Column.LAST_SEQ, Column.FIRST_US, Column.LAST_US):
            total[column] = called[column]
        return total
    numbered = [value for value in (one[Column.FIRST_SEQ], other[Column.FIRST_SEQ]) if value]
    total[Column.FIRST_SEQ] = min(numbered, default=0)
    total[Column.LAST_SEQ] = max(one[Column.LAST_SEQ], other[Column.LAST_SEQ])
    total[Column.FIRST_US] = min(one[Column.FIRST_US], other[Column.FIRST_US])
    total[Column.LAST_US] = max(one[Column.LAST_US], other[Column.LAST_US])
    return total
