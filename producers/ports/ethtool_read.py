"""Reads the ethtool statistics of one port into counter slots, summing the members of a bond."""

import errno
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from producers.ports.delta import ABSENT
from producers.ports.discover import unpublished_gap
from producers.ports.flush import Gap
from streams.contract.counters import is_published

# mlx5 asks its firmware for some of these; where that is slow, ten times a second would hold up every sample.
SLOW_US = 5_000
SLOW_EVERY_TICKS = 10
STEADY_READINGS = 3  # in a row, slow or fast, before the pace changes: one preempted reading says nothing


class Statistics(Protocol):
    """What the ethtool socket offers; OSError where the netdev does not."""

    def names(self, netdev: str) -> tuple[str, ...]: ...  # noqa: D102
    def values(self, netdev: str, count: int) -> NDArray[np.uint64]: ...  # noqa: D102


class EthtoolReader:
    """The published statistics of `netdevs` together, under the names that all of them have.

    `changed` says that the driver no longer answers as it did: make a new reader at the next rescan.
    """

    def __init__(
        self,
        netdevs: tuple[str, ...],
        statistics: Statistics,
        source: str,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._statistics = statistics
        self._source = source
        self._clock_ns = clock_ns
        self._members: list[tuple[str, int, NDArray[np.intp]]] = []
        self._every_ticks = 1
        self._calls = 0
        self._against_pace = 0
        self.names: tuple[str, ...] = ()
        self._gaps: tuple[Gap, ...] = ()
        self.changed = False
        self._learn(netdevs)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What is not read, and why."""
        if self._every_ticks == 1:
            return self._gaps
        reason = f"the driver needs over {SLOW_US} us a reading: read every {SLOW_EVERY_TICKS}th tick"
        return (*self._gaps, Gap(source=self._source, what="eth/*", reason=reason))

    def read(self, into: list[int], offset: int) -> None:
        """Put the statistics into `into[offset:]`, or ABSENT where a member does not answer."""
        end = offset + len(self.names)
        due = self._calls % self._every_ticks == 0
        self._calls += 1
        into[offset:end] = self._sum() if due and self._members else [ABSENT] * len(self.names)

    def _sum(self) -> list[int]:
        begun_ns = self._clock_ns()
        total = [0] * len(self.names)
        for netdev, count, picked in self._members:
            try:
                values = self._statistics.values(netdev, count)
            except OSError as error:
                self._forget(netdev, error)
                self.changed = True
                return [ABSENT] * len(self.names)
            if len(values) != count:
                self.changed = True
                return [ABSENT] * len(self.names)
            total = [a + b for a, b in zip(total, values[picked].tolist(), strict=True)]
        self._pace(self._clock_ns() - begun_ns > SLOW_US * 1000)
        return [min(value, ABSENT) for value in total]

    def _pace(self, slow: bool) -> None:
        """Read seldom while the driver is slow, at every tick while it is not."""
        self._against_pace = self._against_pace + 1 if slow == (self._every_ticks == 1) else 0
        if self._against_pace == STEADY_READINGS:
            self._against_pace = 0
            self._every_ticks = SLOW_EVERY_TICKS if slow else 1

    def _learn(self, netdevs: tuple[str, ...]) -> None:
        lists: list[tuple[str, tuple[str, ...]]] = []
        for netdev in netdevs:
            try:
                lists.append((netdev, self._statistics.names(netdev)))
            except OSError as error:
                self._forget(netdev, error)
                return
        if not lists:
            return
        common = [name for name in lists[0][1] if all(name in names for _, names in lists)]
        picked = [name for name in common if name and is_published(f"eth/{name}")]
        if len(picked) < len(common):
            self._gaps += (unpublished_gap(self._source, "eth/*", len(common) - len(picked)),)
        if not picked:
            return
        self.names = tuple(f"eth/{name}" for name in picked)
        for netdev, names in lists:
            places = {name: place for place, name in enumerate(names)}
            self._members.append((netdev, len(names), np.array([places[n] for n in picked], dtype=np.intp)))

    def _forget(self, netdev: str, error: OSError) -> None:
        """Stop asking, and say why."""
        self._members.clear()
        code = errno.errorcode.get(error.errno or 0, "EIO")
        self._gaps += (Gap(source=self._source, what="eth/*", reason=f"{netdev}: {code}"),)
