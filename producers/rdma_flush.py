"""From cumulative counters per process to what each holder did in each tick of a flush."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from producers.encode import Holding
from producers.kernel.rdma_decode import HolderCounters
from streams.contract import features
from streams.contract.inputs import Holder
from streams.contract.series import MISSING

ResolveHolder = Callable[[HolderCounters], Holder]

# Feature and the counter behind it; levels are as read, the others are differences of two readings.
_COUNTERS = (
    (features.QP_CREATED, "qp_created"),
    (features.QP_RTS, "qp_rts"),
    (features.QP_DESTROYED, "qp_destroyed"),
    (features.MR_REGISTERED, "mr_registered"),
    (features.MR_DEREGISTERED, "mr_deregistered"),
    (features.CQ_CREATED, "cq_created"),
    (features.CQ_DESTROYED, "cq_destroyed"),
)
_LEVELS = (
    (features.QP_LIVE, "qp_live"),
    (features.MR_LIVE, "mr_live"),
    (features.MR_LIVE_BYTES, "mr_live_bytes"),
    (features.CQ_LIVE, "cq_live"),
)
_BYTES = ((features.TX_BYTES, "bytes_sent"), (features.TX_PACKETS, "packets_sent"))
_NAMES = tuple(name for name, _ in (*_COUNTERS, *_LEVELS, *_BYTES))
_FIRST_LEVEL, _FIRST_BYTES = len(_COUNTERS), len(_COUNTERS) + len(_LEVELS)

ProcessKey = tuple[int, int, str]
Place = tuple[Holder, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tick:
    sums: dict[Place, NDArray[np.int64]]


class RdmaTally:
    """`sample` at each tick that was read, `flush` every few ticks; processes of one holder are summed.

    A process that is no longer in a sample is forgotten; what it did until its last sample has been counted. The
    difference over ticks that were not read stays whole in the next tick that was: sums are exact.
    """

    def __init__(self, resolve: ResolveHolder) -> None:
        self._resolve = resolve
        self._previous: dict[ProcessKey, NDArray[np.int64]] = {}
        self._ticks: dict[int, _Tick] = {}
        self._counts_bytes: set[str] = set()

    @property
    def counts_bytes(self) -> bool:
        """True once a device's driver shows each packet."""
        return bool(self._counts_bytes)

    def sample(self, tick: int, counters: Sequence[HolderCounters]) -> None:
        """Take the cumulative counters as they are at a tick's end."""
        current: dict[ProcessKey, NDArray[np.int64]] = {}
        sums: dict[Place, NDArray[np.int64]] = {}
        for one in counters:
            key = one.pid, one.cgroup_id, one.device
            reading = _reading(one)
            current[key] = reading
            if one.bytes_sent is not None:
                self._counts_bytes.add(one.device)
            change = _change(self._previous.get(key), reading)
            if not change.any():
                continue
            place = self._resolve(one), one.device
            total = sums.get(place)
            sums[place] = change if total is None else total + change
        self._previous = current
        self._ticks[tick] = _Tick(sums=sums)

    def flush(self, first_tick: int, ticks: int) -> list[Holding]:
        """What each holder did on each device; those that held nothing and did nothing are left out."""
        window = [self._ticks.get(tick) for tick in range(first_tick, first_tick + ticks)]
        self._ticks = {tick: found for tick, found in self._ticks.items() if tick >= first_tick + ticks}
        places = dict.fromkeys(place for found in window if found is not None for place in found.sums)
        nothing = np.zeros(len(_NAMES), np.int64)
        unread = np.full(len(_NAMES), MISSING, np.int64)
        holdings = []
        for holder, device in places:
            columns = [unread if found is None else found.sums.get((holder, device), nothing) for found in window]
            matrix = np.stack(columns, axis=1)
            names = _NAMES if device in self._counts_bytes else _NAMES[:_FIRST_BYTES]
            values = {name: matrix[row] for row, name in enumerate(names)}
            holdings.append(Holding(holder=holder, device=device, values=values))
        return holdings


def _reading(one: HolderCounters) -> NDArray[np.int64]:
    fields = (*_COUNTERS, *_LEVELS, *_BYTES)
    return np.array([getattr(one, field) or 0 for _, field in fields], np.int64)


def _change(before: NDArray[np.int64] | None, now: NDArray[np.int64]) -> NDArray[np.int64]:
    """Differences of counters, levels as they are. A counter that went back began again: it counts from zero."""
    if before is None:
        return now.copy()
    change = np.where(now >= before, now - before, now)
    change[_FIRST_LEVEL:_FIRST_BYTES] = now[_FIRST_LEVEL:_FIRST_BYTES]
    return change
