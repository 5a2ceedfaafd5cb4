"""Time as the whole system counts it: integer ticks of 100 ms since the Unix epoch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

TICK_US = 100_000
TICKS_PER_SECOND = 10

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def tick_of_us(epoch_us: int) -> int:
    """The tick that holds an epoch time in microseconds."""
    return epoch_us // TICK_US


def us_of_tick(tick: int) -> int:
    """The epoch time in microseconds at which a tick begins."""
    return tick * TICK_US


def rfc3339_of_tick(tick: int | None) -> str | None:
    """A tick's beginning as RFC 3339 in UTC with milliseconds; None stays None."""
    return None if tick is None else rfc3339_of_us(us_of_tick(tick))


def rfc3339_of_us(epoch_us: int) -> str:
    """An epoch time as RFC 3339 in UTC with milliseconds."""
    moment = _EPOCH + timedelta(microseconds=epoch_us)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
