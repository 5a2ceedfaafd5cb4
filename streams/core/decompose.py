"""What became longer in a slow step, the transfer or the gap between transfers: the job's own bytes tell."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from streams.contract import features
from streams.contract.ticks import TICK_US
from streams.core.history import Window
from streams.core.iterations import Sample

IDLE_FRACTION = 0.02  # Of the usual busy tick: less is keep-alives and acknowledgements
SLOW_SHARE = 0.5  # At least this part of the added time is spent moving bytes: the communication is slow
GAP_SHARE = 0.3  # At most this part: the added time lies between the transfers
SHORTEST_ADDED_TICKS = 0.25  # A step that grew by less than this cannot be split with 100 ms ticks
CLEAR_ADDED_TICKS = 3.0  # From here on a gap shows even where quiet steps had no idle tick
FULL_BURST_TICKS = 2.0  # A shorter burst fills no whole tick, so its busiest tick is no rate


class Slower(Enum):
    """Which part of the step grew."""

    TRANSFER = auto()
    GAP = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One node's split of the added time; shares are of the added time, in 10^-4."""

    slower: Slower
    transfer_share_e4: int
    quiet_bytes_per_step: int
    slow_bytes_per_step: int
    quiet_rate: int  # Bytes per busy tick
    slow_rate: int
    port_totals: bool = False  # The job's own bytes are not seen; the port's stood for them


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    busy_ticks: float  # Per step
    longest_idle_ticks: float  # Per step
    bytes_per_step: float
    rate: float  # Bytes per busy tick, 90th percentile


def decompose(window: Window, quiet: list[Sample], slow: list[Sample]) -> Parts | None:
    """Compare the job's bytes in quiet and in slow steps on one node; None where no bytes are seen.

    Three estimates of the time spent moving bytes: ticks with bytes (a burst that starts anywhere in a tick touches
    one tick more than it lasts, in quiet and in slow steps alike, so the difference holds); bytes over the rate of
    a busy tick; the step less its longest idle stretch. Sleep between steps moves none of them. A lower share of the
    port moves the first two, stalls inside a transfer the third. The largest counts: nobody is excused by a doubt.
    Steps without an idle tick that grew by less than three ticks hide the gap inside a tick: there the rate alone can
    tell, and only of bursts that fill whole ticks; else `Slower.UNKNOWN`.
    """
    series, port_totals = job_bytes(window)
    if series is None or not quiet or not slow:
        return None
    busy_level = _busy_level(series, window, quiet)
    if busy_level <= 0:
        return None
    before = _shape(series, window, quiet, busy_level)
    after = _shape(series, window, slow, busy_level)
    if before is None or after is None:
        return None
    added = _step_ticks(slow) - _step_ticks(quiet)
    share = _transfer_share(before, after, added)
    return Parts(
        slower=Slower.UNKNOWN if share is None else _slower(share),
        transfer_share_e4=0 if share is None else round(10_000 * max(0.0, min(1.0, share))),
        quiet_bytes_per_step=round(before.bytes_per_step),
        slow_bytes_per_step=round(after.bytes_per_step),
        quiet_rate=round(before.rate),
        slow_rate=round(after.rate),
        port_totals=port_totals,
    )


def job_bytes(window: Window) -> tuple[NDArray[np.float64] | None, bool]:
    """The job's bytes per tick on a node, else those of the ports that only it can be using; and which it was."""
    own = [row for (_, name), row in window.own.items() if name in {features.TX_BYTES, features.RX_BYTES}]
    if own:
        return np.sum(own, axis=0), False
    ports = [
        row
        for (port, name), row in window.ports.items()
        if name == features.PORT_TX_BYTES and window.port_of[port].used
    ]
    return (np.sum(ports, axis=0), True) if ports else (None, True)


def _transfer_share(before: _Shape, after: _Shape, added: float) -> float | None:
    if added < SHORTEST_ADDED_TICKS or before.rate <= 0 or after.rate <= 0:
        return None
    burst = before.bytes_per_step / before.rate
    by_rate = (after.bytes_per_step / after.rate - burst) / added if burst >= FULL_BURST_TICKS else None
    if before.longest_idle_ticks < 1 and added < CLEAR_ADDED_TICKS:
        return by_rate
    busy = (after.busy_ticks - before.busy_ticks) / added
    inside = 1 - (after.longest_idle_ticks - before.longest_idle_ticks) / added
    return max(busy, inside, by_rate or 0.0)


def _slower(share: float) -> Slower:
    if share >= SLOW_SHARE:
        return Slower.TRANSFER
    return Slower.GAP if share <= GAP_SHARE else Slower.UNKNOWN


def _step_ticks(samples: list[Sample]) -> float:
    return sum(sample.elapsed_us for sample in samples) / sum(sample.steps for sample in samples) / TICK_US


def _busy_level(series: NDArray[np.float64], window: Window, quiet: list[Sample]) -> float:
    part = series[_span(window, quiet)]
    moved = part[part > 0]
    return float(np.percentile(moved, 90)) * IDLE_FRACTION if len(moved) else 0.0


def _span(window: Window, samples: list[Sample]) -> slice:
    return window.seen(samples[0].start_us // TICK_US, samples[-1].end_us // TICK_US)


def _shape(series: NDArray[np.float64], window: Window, samples: list[Sample], busy_level: float) -> _Shape | None:
    part = series[_span(window, samples)]
    part = part[~np.isnan(part)]
    if not len(part):
        return None
    busy = part > busy_level
    ticks_per_step = _step_ticks(samples)
    idle = [_longest_idle(series, window, sample, busy_level) for sample in samples if sample.steps == 1]
    return _Shape(
        busy_ticks=float(busy.mean()) * ticks_per_step,
        longest_idle_ticks=float(np.mean(idle)) if idle else 0.0,
        bytes_per_step=float(part.mean()) * ticks_per_step,
        rate=float(np.percentile(part[busy], 90)) if busy.any() else 0.0,
    )


def _longest_idle(series: NDArray[np.float64], window: Window, sample: Sample, busy_level: float) -> int:
    """The longest run of idle ticks that touches a step, seen whole even where it reaches over the step's end."""
    part = series[window.seen(sample.start_us // TICK_US, sample.end_us // TICK_US + 1)]
    longest = run = 0
    for value in part.tolist():
        run = 0 if value > busy_level else run + 1
        longest = max(longest, run)
    return longest
