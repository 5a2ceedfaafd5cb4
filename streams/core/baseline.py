"""What is normal for a job: the median of its quiet steps and their spread, frozen while an alarm lasts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streams.core.settings import JudgeSettings

MAD_TO_SIGMA = 1.4826
FEW = 8  # A spread from few steps is uncertain: 40 % wider at 20 of them, 4 % at 200
REFRESH = 25  # A full window moves little with one step


class Baseline(msgspec.Struct, kw_only=True):
    """Level and scale in microseconds; level 0: not known yet."""

    dropped: int = 0  # Warm-up steps seen
    quiet: list[int] = []
    since_refresh: int = 0
    level_us: int = 0
    scale_us: float = 0.0

    @property
    def known(self) -> bool:
        """True once there were enough quiet steps."""
        return self.level_us > 0


def add_quiet(baseline: Baseline, step_us: int, settings: JudgeSettings) -> None:
    """Take one quiet step into account."""
    if baseline.dropped < settings.warmup_iterations:
        baseline.dropped += 1
        return
    baseline.quiet.append(step_us)
    del baseline.quiet[: -settings.baseline_window]
    baseline.since_refresh += 1
    enough = len(baseline.quiet) >= settings.baseline_iterations
    if enough and (not baseline.known or baseline.since_refresh >= REFRESH):
        baseline.since_refresh = 0
        level = _median(baseline.quiet)
        spread = MAD_TO_SIGMA * _median([abs(quiet_us - level) for quiet_us in baseline.quiet])
        baseline.level_us = max(int(level), 1)
        spread *= 1 + FEW / len(baseline.quiet)
        baseline.scale_us = max(spread, level * settings.scale_floor_e4 / 10_000)


def start_again(baseline: Baseline, quiet: list[int]) -> None:
    """Let newer steps alone make the level; the old one holds until there are enough of them."""
    baseline.quiet = quiet
    baseline.since_refresh = REFRESH


def _median(values: Sequence[float]) -> float:
    """At a few hundred values four times as fast as numpy's."""
    ordered = sorted(values)
    return (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) / 2
