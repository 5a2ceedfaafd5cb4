"""NCCL calls and communicators of every process on this node, counted in the kernel by uprobes on the real library.

Exactness. The kernel counts per (tick, process, communicator, operation, type, count), the tick being cut in the
kernel on the wall clock's 100 ms grid. An entry is read every sample and kept for RETAIN_TICKS more; what is new in
it since the last look is reported, so a count that arrives while we read is in the next sample, and nothing falls
between a read and a delete. Only a program that was interrupted between finding its entry and adding to it for longer
than RETAIN_TICKS could lose a call. Full maps refuse and are counted in `lost`. What a process did before its library
was first found by `rescan` was not seen; a library once probed is probed in every process that maps it later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from producers.kernel.loader import Program, load
from producers.kernel.nccl_libraries import Library, LibraryProbes
from producers.kernel.nccl_rows import CallRow, CommEvent, CommFunction, decode_call, decode_event
from streams.contract.header import Gap

SOURCES = ("nccl_shared.h", "nccl_calls.c", "nccl_comms.c")
TICK_NS = 100_000_000
GRACE_NS = 2_000_000  # a program that began in a tick has written by then
RETAIN_TICKS = 5
EVENTS_AT_ONCE = 4096
CLOCK_ERROR_NS = 50_000  # below this the clock offset in the kernel is left alone


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCounts:
    """What full maps refused since the start: never silently."""

    calls: int
    returns: int  # a failure may be missing, and a library mapped by two paths may count twice
    sequences: int
    events: int


class NcclCalls:
    """Probes on NCCL; not thread-safe, call its methods from one thread.

    `libraries` are probed from the start, so that not even the first call of a process that maps one is missed.
    Raises LoaderUnavailable where BPF cannot be had.
    """

    def __init__(
        self,
        *,
        bpf_dir: Path,
        proc: Path = Path("/proc"),
        libraries: Iterable[Path] = (),
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._proc = proc
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._program: Program = load("\n".join((bpf_dir / name).read_text() for name in SOURCES))
        self._offset_ns: int | None = None
        self._set_clock()
        self._counts: dict[tuple[int, ...], tuple[int, int]] = {}
        self._probes = LibraryProbes(self._program, proc)
        self._alive: dict[tuple[int, int], CommEvent] = {}
        self._exits: list[CommEvent] = []
        self.complete_through_tick = (wall_ns() - GRACE_NS) // TICK_NS - 1
        for path in libraries:
            self._probes.pin(path)

    @property
    def gaps(self) -> list[Gap]:
        """What is not seen and why, as of the last rescan."""
        return self._probes.gaps

    @property
    def libraries(self) -> list[Library]:
        """The libraries that are probed now."""
        return self._probes.libraries

    @property
    def lost(self) -> LostCounts:
        """Refusals of full maps since the start."""
        table = self._program.table("nccl_lost")
        calls, returns, sequences, events = (table.sum_per_cpu(reason) for reason in range(4))
        return LostCounts(calls=calls, returns=returns, sequences=sequences, events=events)

    def rescan(self) -> int:
        """Probe libraries that processes map since the last time; returns how many are new.

        Also notices communicators whose process is gone: `events` then tells their end.
        """
        before, known = self._probes.added, dict(self._alive)
        users = self._probes.rescan()
        self._notice_exits(known, users)
        self._forget_processes(users)
        return self._probes.added - before

    def sample(self) -> list[CallRow]:
        """What is new since the last sample in all ticks that are over, oldest first.

        Sets `complete_through_tick`. Rows of an older tick can still come, when a call was being counted in that
        very moment.
        """
        self._set_clock()
        now_tick = (self._wall_ns() - GRACE_NS) // TICK_NS
        table = self._program.table("nccl_calls")
        rows, stale = [], []
        for key, value in table.items():
            # A tick in the future is from before the wall clock was set back: it is over too.
            if now_tick <= key.tick <= now_tick + 1:
                continue
            name = (key.tick, key.tgid, key.comm, key.op, key.dtype, key.count)
            calls, failed = self._counts.get(name, (0, 0))
            if (value.calls, value.failed) != (calls, failed):
                rows.append(decode_call(key, value, calls=value.calls - calls, failed=value.failed - failed))
                self._counts[name] = value.calls, value.failed
            if abs(now_tick - key.tick) > RETAIN_TICKS:
                stale.append(key)
                self._counts.pop(name, None)
        table.delete(stale)
        self.complete_through_tick = now_tick - 1
        return sorted(rows, key=lambda row: (row.tick, row.pid, row.comm_ptr, row.first_ns))

    def events(self) -> list[CommEvent]:
        """Births and deaths of communicators since the last call, in the order of their returns."""
        table = self._program.table("nccl_comm_events")
        seen = [decode_event(raw) for raw in table.pop_all(EVENTS_AT_ONCE)]
        for event in seen:
            if event.failed or not event.comm_ptr:
                continue
            if event.is_birth:
                self._alive[event.pid, event.comm_ptr] = event
            elif event.function is not CommFunction.FINALIZE:
                self._alive.pop((event.pid, event.comm_ptr), None)
        exits, self._exits = self._exits, []
        return seen + exits

    def close(self) -> None:
        """Detach everything."""
        self._program.close()

    def _set_clock(self) -> None:
        # The shortest of three readings has the smallest error.
        readings = []
        for _ in range(3):
            before = self._monotonic_ns()
            wall = self._wall_ns()
            after = self._monotonic_ns()
            readings.append((after - before, wall - (before + after) // 2))
        offset = min(readings)[1]
        if self._offset_ns is None or abs(offset - self._offset_ns) > CLOCK_ERROR_NS:
            self._offset_ns = offset
            self._program.table("nccl_wall_offset_ns").set(0, offset)

    def _notice_exits(self, known: dict[tuple[int, int], CommEvent], users: set[int]) -> None:
        now_ns = self._wall_ns()
        for name, birth in known.items():
            if birth.pid not in users and self._is_gone(birth.pid):
                del self._alive[name]
                self._exits.append(
                    replace(birth, function=CommFunction.PROCESS_EXIT, time_ns=now_ns, returned_ns=now_ns)
                )

    def _forget_processes(self, users: set[int]) -> None:
        """Free what the maps hold for processes that are gone; counts free themselves by age."""
        self._forget("nccl_sequences", lambda key: int(key.tgid), users)
        self._forget("nccl_open_calls", lambda key: int(key.pid_tgid) >> 32, users)
        self._forget("nccl_open_comms", lambda key: int(key.pid_tgid) >> 32, users)

    def _forget(self, table_name: str, pid_of: Callable[[Any], int], users: set[int]) -> None:
        table = self._program.table(table_name)
        table.delete(key for key, _ in table.items() if pid_of(key) not in users and self._is_gone(pid_of(key)))

    def _is_gone(self, pid: int) -> bool:
        # Not every process outside `users` is: one may have started after the scan. A zombie has no mappings.
        try:
            with (self._proc / str(pid) / "maps").open("rb") as maps:
                return not maps.read(1)
        except PermissionError:
            return False
        except OSError:
            return True
