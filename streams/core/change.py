"""When a series left its level: a CUSUM on clipped scores says that it did, a two-mean split says when."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
