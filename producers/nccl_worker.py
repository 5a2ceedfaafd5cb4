"""NCCL's probes in a thread of their own: looking for libraries in every process must not delay port sampling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from producers.kernel.nccl import LostCounts
from producers.kernel.nccl_libraries import Library
from producers.kernel.nccl_rows import CallRow, CommEvent
from streams.contract.header import Gap
from streams.contract.ticks import TICK_US

RESCAN_EVERY_S = 2.0
AFTER_TICK_S = 0.004  # the kernel's counts of a tick are complete 2 ms after its end
STOP_TIMEOUT_S = 30.0  # a rescan of a full node, and detaching some hundred probes


class Probes(Protocol):
    """What `NcclCalls` is to this file."""

    complete_through_tick: int

    @property
    def gaps(self) -> list[Gap]: ...  # noqa: D102
    @property
    def libraries(self) -> list[Library]: ...  # noqa: D102
    @property
    def lost(self) -> LostCounts: ...  # noqa: D102
    def rescan(self) -> int: ...  # noqa: D102
    def sample(self) -> list[CallRow]: ...  # noqa: D102
    def events(self) -> list[CommEvent]: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTaken:
    """Calls and events since the last look, and how the probes are."""

    rows: Sequence[CallRow] = ()
    events: Sequence[CommEvent] = ()
    gaps: Sequence[Gap] = ()
    libraries: Sequence[str] = ()
    lost_events: int = 0
    probes_attached: int = 0
    probes_wanted: int = 0


class NcclWorker:
    """Owns the probes; `take` hands over everything up to a tick, waiting a few milliseconds for it at most."""

    def __init__(self, probes: Probes, *, wall_s: Callable[[], float] = time.time) -> None:
        self._probes = probes
        self._wall_s = wall_s
        self._changed = threading.Condition()
        self._stopping = False
        self._rows: list[CallRow] = []
        self._events: list[CommEvent] = []
        self._complete_through_tick = 0
        self._error: str | None = None
        self._state = NcclTaken()
        self._thread = threading.Thread(target=self._run, name="nccl", daemon=True)
        self._thread.start()

    def take(self, last_tick: int, timeout_s: float) -> NcclTaken:
        """Rows of ticks up to `last_tick` and all events; later rows stay for the next flush."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while self._complete_through_tick < last_tick and self._error is None:
                if (left_s := deadline_s - time.monotonic()) <= 0:
                    break
                self._changed.wait(left_s)
            rows = [row for row in self._rows if row.tick <= last_tick]
            self._rows = [row for row in self._rows if row.tick > last_tick]
            events, self._events = self._events, []
            state = self._state
            gaps = list(state.gaps)
            if self._error is not None:
                gaps.append(Gap(source="nccl", what="NCCL calls", reason=self._error))
        return NcclTaken(
            rows=rows,
            events=events,
            gaps=gaps,
            libraries=state.libraries,
            lost_events=state.lost_events,
            probes_attached=state.probes_attached,
            probes_wanted=state.probes_wanted,
        )

    def close(self) -> None:
        """Stop the thread and detach everything."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            rescan_at_s = 0.0
            while not self._wait():
                self._sample()
                if time.monotonic() >= rescan_at_s:
                    self._probes.rescan()
                    rescan_at_s = time.monotonic() + RESCAN_EVERY_S
                    self._look()
        except Exception as error:  # noqa: BLE001
            # The other sources go on; this one's end is a gap on every record, not a silence.
            structlog.get_logger("agent").exception("NCCL probes failed")
            with self._changed:
                self._error = f"the probes failed: {type(error).__name__}: {error}"
                self._changed.notify_all()
        finally:
            self._probes.close()

    def _wait(self) -> bool:
        """Until shortly after the next tick's end; True when it is time to stop."""
        tick_s = TICK_US / 1e6
        wait_s = tick_s - self._wall_s() % tick_s + AFTER_TICK_S
        with self._changed:
            if not self._stopping:
                self._changed.wait(wait_s)
            return self._stopping

    def _sample(self) -> None:
        rows, events = self._probes.sample(), self._probes.events()
        with self._changed:
            self._rows += rows
            self._events += events
            self._complete_through_tick = self._probes.complete_through_tick
            self._changed.notify_all()

    def _look(self) -> None:
        lost = self._probes.lost
        libraries = self._probes.libraries
        attached = sum(len(library.handles) for library in libraries) // 2
        state = NcclTaken(
            gaps=self._probes.gaps,
            libraries=sorted(
                library.path + (f" ({library.build_id[:16]})" if library.build_id else "") for library in libraries
            ),
            lost_events=lost.calls + lost.returns + lost.sequences + lost.events,
            probes_attached=attached,
            probes_wanted=attached + sum(len(library.gaps) for library in libraries),
        )
        with self._changed:
            self._state = state
