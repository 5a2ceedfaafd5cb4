"""The wall clock's 100 ms grid, and what makes an agent's epoch end: a step of the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from streams.contract.ticks import TICK_US, tick_of_us

# Over one tick of disagreement between the two clocks the ticks no longer mean what they did. An NTP slew of
# 500 ppm moves 50 us a tick; the reference is renewed each time, so only steps add up to this much.
STEP_US = TICK_US


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One reading of both clocks."""

    wall_us: int
    monotonic_us: int

    @property
    def tick(self) -> int:
        """The tick that holds it."""
        return tick_of_us(self.wall_us)

    @property
    def offset_us(self) -> int:
        """Wall minus monotonic: constant but for slews and steps."""
        return self.wall_us - self.monotonic_us


def read_clocks() -> Moment:
    """Both clocks, as close together as a few tries allow."""
    best: tuple[int, Moment] | None = None
    for _ in range(3):
        before_ns = time.monotonic_ns()
        wall_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        found = Moment(wall_us=wall_ns // 1000, monotonic_us=(before_ns + after_ns) // 2000)
        if best is None or after_ns - before_ns < best[0]:
            best = after_ns - before_ns, found
    assert best is not None  # noqa: S101
    return best[1]


class StepWatch:
    """Says when the wall clock stepped by over a tick since the last look."""

    def __init__(self, first: Moment) -> None:
        self._offset_us = first.offset_us

    def stepped_us(self, now: Moment) -> int:
        """The size of a step that happened since the last call; 0 for a slew."""
        change_us = now.offset_us - self._offset_us
        self._offset_us = now.offset_us
        return change_us if abs(change_us) > STEP_US else 0


ReadClocks = Callable[[], Moment]
