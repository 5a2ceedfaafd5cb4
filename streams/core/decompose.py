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

IDLE_FRACTION = 0.02  # Of a port's usual busy tick: less is keep-alives
ALIKE = 0.8
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
    rows, port_totals = _job_rows(window)
    quiet_ticks, slow_ticks = _ticks_of(window, quiet), _ticks_of(window, slow)
    if not rows or not quiet_ticks.any() or not slow_ticks.any():
        return None
    levels = [_busy_level(row[quiet_ticks]) for row in rows]
    moving = [(row, level) for row, level in zip(rows, levels, strict=True) if level > 0]
    if not moving:
        return None
    busy = np.any([row > level for row, level in moving], axis=0)
    total = np.nansum([row for row, _ in moving], axis=0)
    before = _shape(busy, total, window, quiet, quiet_ticks)
    after = _shape(busy, total, window, slow, slow_ticks)
    if port_totals and not _alike(before.bytes_per_step, after.bytes_per_step):
        return None
    share = _transfer_share(before, after, _step_ticks(slow) - _step_ticks(quiet))
    return Parts(
        slower=Slower.UNKNOWN if share is None else _slower(share),
        transfer_share_e4=0 if share is None else round(10_000 * max(0.0, min(1.0, share))),
        quiet_bytes_per_step=round(before.bytes_per_step),
        slow_bytes_per_step=round(after.bytes_per_step),
        quiet_rate=round(before.rate),
        slow_rate=round(after.rate),
        port_totals=port_totals,
    )


def _job_rows(window: Window) -> tuple[list[NDArray[np.float64]], bool]:
    """The job's own bytes per port and direction, else those of the ports that it uses; and whether it is the latter.

    Each row is judged by its own level: the acknowledgements that come back on another port say how long the
    transfer took, even where the sender's bytes left for a queue all at once.
    """
    own = [row for (_, name), row in window.own.items() if name in {features.TX_BYTES, features.RX_BYTES}]
    if own:
        return own, False
    return [
        row
        for (port, name), row in window.ports.items()
        if name in {features.PORT_TX_BYTES, features.PORT_RX_BYTES} and window.port_of[port].used
    ], True


def _alike(before: float, after: float) -> bool:
    """Port totals stand for the job's bytes only while they are per step what they were: else others are in them."""
    return before > 0 and ALIKE <= after / before <= 1 / ALIKE


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


def _busy_level(quiet: NDArray[np.float64]) -> float:
    moved = quiet[quiet > 0]
    return float(np.percentile(moved, 90)) * IDLE_FRACTION if len(moved) else 0.0


def _ticks_of(window: Window, samples: list[Sample]) -> NDArray[np.bool_]:
    """The seen ticks that belong to any of these steps."""
    chosen = np.zeros(window.ticks, bool)
    for sample in samples:
        chosen[window.seen(sample.start_us // TICK_US, sample.end_us // TICK_US)] = True
    return chosen & window.covered


def _shape(
    busy: NDArray[np.bool_],
    total: NDArray[np.float64],
    window: Window,
    samples: list[Sample],
    ticks: NDArray[np.bool_],
) -> _Shape:
    ticks_per_step = _step_ticks(samples)
    idle = [_longest_idle(busy, window, sample) for sample in samples if sample.steps == 1]
    moved = total[ticks & busy]
    return _Shape(
        busy_ticks=float(busy[ticks].mean()) * ticks_per_step,
        longest_idle_ticks=float(np.mean(idle)) if idle else 0.0,
        bytes_per_step=float(total[ticks].mean()) * ticks_per_step,
        rate=float(np.percentile(moved, 90)) if len(moved) else 0.0,
    )


def _longest_idle(busy: NDArray[np.bool_], window: Window, sample: Sample) -> int:
    """The longest run of idle ticks that touches a step."""
    longest = run = 0
    for is_busy in busy[window.seen(sample.start_us // TICK_US, sample.end_us // TICK_US + 1)].tolist():
        run = 0 if is_busy else run + 1
        longest = max(longest, run)
    return longest
