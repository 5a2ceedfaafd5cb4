"""What two readings of the same counters say, knowing each counter's width and its end."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streams.contract.counters import AtMaximum, CounterKind, CounterSpec

MISSING = -(2**63)
"""A tick for which the counter said nothing: not read, absent, saturated, or its first reading."""

ABSENT = 2**64 - 1
"""Raw reading of a counter that could not be read; drivers also print all ones for "not supported"."""

_INT64_MAX = np.uint64(2**63 - 1)
_ABSENT = np.uint64(ABSENT)
# A 64-bit counter that fell has wrapped only if it moved less than this; else somebody set it back.
_WRAP_REACH_64 = np.uint64(2**40)

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """The specs of n counters as columns, in the order of the readings."""

    maximum: U64
    saturates: Mask
    gauge: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Deltas:
    """Per counter: the value of the tick or MISSING, whether it was reset, whether it sits at its maximum."""

    values: I64
    resets: Mask
    saturated: Mask


def widths_of(specs: Sequence[CounterSpec]) -> Widths:
    """The columns of `specs`."""
    return Widths(
        maximum=np.array([spec.maximum for spec in specs], dtype=np.uint64),
        saturates=np.array([spec.at_maximum is AtMaximum.SATURATES for spec in specs], dtype=np.bool_),
        gauge=np.array([spec.kind is CounterKind.GAUGE for spec in specs], dtype=np.bool_),
    )


def deltas(previous: U64, current: U64, widths: Widths) -> Deltas:
    """Counters become differences, gauges stay as read; `ABSENT` on either side of a counter gives MISSING.

    - A value above the stated maximum proves a wider (64-bit) counter.
    - A counter that fell has wrapped if the way round is less than half its range (2^40 for 64-bit ones);
      otherwise, and always for a saturating one, it was reset: flagged, and the tick is MISSING.
    - A saturating counter that arrives at its maximum gives the difference, a lower bound; one that was
      there already gives MISSING, because "no new errors" is not what it says.
    - A forward step of 2^63 or more is no counting: a reset.
    """
    seen = current != _ABSENT
    both = seen & (previous != _ABSENT) & ~widths.gauge
    wide = np.maximum(np.where(both, previous, 0), np.where(seen, current, 0)) > widths.maximum
    maximum = np.where(wide, _ABSENT, widths.maximum)
    wraps = wide | ~widths.saturates
    step = (current - previous) & maximum
    reach = np.where(maximum == _ABSENT, _WRAP_REACH_64, maximum >> np.uint64(1))

    fell = both & (current < previous)
    resets = (fell & ~(wraps & (step <= reach))) | (both & ~fell & (step > _INT64_MAX))
    saturated = seen & ~widths.gauge & ~wraps & (current == maximum)
    counted = both & ~resets & ~(saturated & (previous == current))
    held = seen & widths.gauge & (current <= _INT64_MAX)

    values = np.full(current.shape, MISSING, dtype=np.int64)
    values[counted] = step[counted].astype(np.int64)
    values[held] = current[held].astype(np.int64)
    return Deltas(values=values, resets=resets, saturated=saturated)
