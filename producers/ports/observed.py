"""The highest rate that was ever seen through each port."""

from collections.abc import Mapping, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from producers.ports.delta import MISSING

# A single tick's rate is off by the jitter of two readings; ten ticks are a second.
WINDOW_TICKS = 10
BYTES_COUNTERS = frozenset({"ib/port_xmit_data", "ib/port_rcv_data", "net/tx_bytes", "net/rx_bytes"})
_BITS_PER_MBPS_TICK = 100_000  # 1 Mb/s during 100 ms


class ObservedRates:
    """Sums the bytes of each port and direction over stretches of unbroken readings of at least a second."""

    def __init__(self, highest_mbps: Mapping[str, int]) -> None:
        self.highest_mbps: dict[str, int] = dict(highest_mbps)
        self._keys: list[str] = []
        self._rows: list[int] = []
        self._multiplier = np.zeros(0, dtype=np.int64)
        self._bytes = np.zeros(0, dtype=np.int64)
        self._ticks = np.zeros(0, dtype=np.int64)

    def rows(self, names: Sequence[tuple[str, str]], multipliers: Sequence[int]) -> None:
        """Take the sampler's rows: (port, counter) and multiplier to bytes. Sums begin anew."""
        chosen = [row for row, (_, name) in enumerate(names) if name in BYTES_COUNTERS]
        self._keys = [names[row][0] for row in chosen]
        self._rows = chosen
        self._multiplier = np.array([multipliers[row] for row in chosen], dtype=np.int64)
        self._bytes = np.zeros(len(chosen), dtype=np.int64)
        self._ticks = np.zeros(len(chosen), dtype=np.int64)

    def add(self, values: NDArray[np.int64], unclean: Set[int]) -> None:
        """Add a flush of all rows; a row with a hole, a reset or a wide span in it begins anew."""
        if not self._rows or values.shape[1] == 0:
            return
        mine = values[self._rows]
        clean = (mine != MISSING).all(axis=1)
        clean &= np.array([row not in unclean for row in self._rows], dtype=np.bool_)
        total = np.where(clean, np.where(mine == MISSING, 0, mine).sum(axis=1) * self._multiplier, 0)
        self._bytes = np.where(clean, self._bytes + total, 0)
        self._ticks = np.where(clean, self._ticks + values.shape[1], 0)
        for index in np.flatnonzero(self._ticks >= WINDOW_TICKS):
            mbps = int(self._bytes[index]) * 8 // (int(self._ticks[index]) * _BITS_PER_MBPS_TICK)
            key = self._keys[index]
            if mbps > self.highest_mbps.get(key, 0):
                self.highest_mbps[key] = mbps
            self._bytes[index] = 0
            self._ticks[index] = 0
