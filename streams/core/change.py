"""When a series left its level: a CUSUM on clipped scores says that it did, a two-mean split says when."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

CHANCE = 1e-6  # A job has some ten thousand steps an hour, each of which could begin a run of slow ones
UNSEEN = 0.2  # What never happened in the quiet steps may still happen
SMALLEST_PART = 3  # Fewer steps than this on one side are an outlier, not a level


def cusum(total: float, z: float, *, k: float, clip: float) -> float:
    """One more score z: drift `k` is taken off, and no single step counts more than `clip`."""
    return max(0.0, total + max(-clip, min(clip, z)) - k)


def split(values: Sequence[int], *, smallest: int = SMALLEST_PART) -> int:
    """The index at which two levels explain the values best (Gaussian likelihood on values clipped at the extremes)."""
    series = np.array(values, np.float64)
    low, high = np.percentile(series, (5, 95))
    series = np.clip(series, low, high)
    count = len(series)
    if count < 2 * smallest:
        smallest = max(1, count // 3)
    sums = np.cumsum(series)
    left = np.arange(smallest, count - smallest + 1)
    if not len(left):
        return 0
    total = sums[-1]
    gain = sums[left - 1] ** 2 / left + (total - sums[left - 1]) ** 2 / (count - left)
    return int(left[int(np.argmax(gain))])


def stands_out(slow: Sequence[int], quiet: Sequence[int], level: float, *, minimum_e4: int) -> bool:
    """True where most steps are slow by the minimum effect, and the job's own quiet steps hardly ever are.

    A step is far out if it shows at least half of the effect. How often quiet steps were (garbage collection,
    checkpoints, plain noise) says how unlikely so many among the slow ones are by chance.
    """
    effect = float(np.median(np.array(slow, np.int64))) - level
    if effect * 10_000 < level * minimum_e4:
        return False
    bar = level + effect / 2
    usual = (sum(step_us >= bar for step_us in quiet) + UNSEEN) / (len(quiet) + 1)
    far = sum(step_us >= bar for step_us in slow)
    return _at_least(far, len(slow), min(usual, 1.0)) <= CHANCE


def _at_least(hits: int, trials: int, chance: float) -> float:
    """Probability of that many hits or more."""
    return sum(
        math.comb(trials, count) * chance**count * (1 - chance) ** (trials - count) for count in range(hits, trials + 1)
    )
