"""Samples every port counter once a tick and hands over the ticks of a flush as columns.

Cost (bench/port_sampling.py; 8 ports x 40 counters on tmpfs, a noisy 2-core machine): 336 read calls and
250-300 us of CPU a tick, 390-460 us with flushes and rescans, which is 0.4-0.5 % of a core at 10 Hz. What a
driver does behind a read comes on top: on InfiniBand each PMA file is one query of the firmware.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from producers.ports.delta import ABSENT, MISSING, Deltas, deltas
from producers.ports.discover import PortPlace, discover
from producers.ports.ethtool import EthtoolSocket
from producers.ports.ethtool_read import Statistics
from producers.ports.flush import Gap, PortsFlush, Reset, Span
from producers.ports.gaps import gaps_of_rows
from producers.ports.observed import ObservedRates
from producers.ports.port_info import port_info
from producers.ports.readers import PortReaders
from producers.ports.rows import NEVER, RowKey, layout_of, memory_of

RESCAN_TICKS = 50  # look for plugged and unplugged ports every 5 s
MAX_SPAN_TICKS = 10  # a delta may cover up to a second without readings; what is longer says nothing of a tick
MAX_FLUSH_TICKS = 600  # after a long sleep only the last minute is handed over, as MISSING


class PortSampler:
    """`sample` at each tick and `flush` every few ticks, from one thread.

    `capacity_settings_mbps` is keyed by "device/port", device or netdev. `observed_mbps` seeds the highest
    rates seen (an earlier life's `observed_mbps`), keyed by "device/port".
    """

    def __init__(
        self,
        *,
        sysfs: Path = Path("/sys"),
        capacity_settings_mbps: Mapping[str, int] | None = None,
        observed_mbps: Mapping[str, int] | None = None,
        statistics: Statistics | None = None,
        rescan_ticks: int = RESCAN_TICKS,
    ) -> None:
        self._sysfs = sysfs
        self._settings_mbps = dict(capacity_settings_mbps or {})
        self._statistics = statistics if statistics is not None else EthtoolSocket()
        self._rescan_ticks = rescan_ticks
        self._observed = ObservedRates(observed_mbps or {})
        self._inodes: dict[str, int] = {}
        self._failures: Counter[str] = Counter()
        self._newest_tick = NEVER
        self._first_tick: int | None = None
        self._scanned_tick: int | None = None
        self._skipped_ticks = 0
        self._columns: dict[int, NDArray[np.int64]] = {}
        self._resets: list[tuple[int, int]] = []
        self._spans: list[tuple[int, int, int]] = []
        self._take(discover(sysfs), readings={})

    @property
    def failures(self) -> Mapping[str, int]:
        """Failed counter reads since the start, by reason."""
        return self._failures + self._readers.failures

    @property
    def observed_mbps(self) -> Mapping[str, int]:
        """The highest rate seen through each port, in either direction."""
        return self._observed.highest_mbps

    def sample(self, tick: int) -> None:
        """Read every counter for `tick`; a tick that is not newer than the last is ignored."""
        if tick <= self._newest_tick:
            return
        self._newest_tick = tick
        if self._first_tick is None:
            self._first_tick = tick
        current = self._readers.read()
        in_reach = tick - self._memory.seen_tick <= MAX_SPAN_TICKS
        previous = np.where(in_reach, self._memory.last, np.uint64(ABSENT))
        found = deltas(previous, current, self._layout.widths)
        self._columns[tick] = found.values
        self._note(tick, current, in_reach, found)

    def flush(self, last_tick: int) -> PortsFlush:
        """The ticks since the last flush up to and with `last_tick`; those not sampled are MISSING."""
        first = self._first_tick if self._first_tick is not None else last_tick
        self._skipped_ticks = max(last_tick - MAX_FLUSH_TICKS + 1 - first, 0)
        first += self._skipped_ticks
        flush = self._pack(first, last_tick)
        self._columns = {tick: column for tick, column in self._columns.items() if tick > last_tick}
        self._resets = [entry for entry in self._resets if entry[1] > last_tick]
        self._spans = [entry for entry in self._spans if entry[1] > last_tick]
        self._memory.saturated[:] = False
        self._memory.dropped[:] = False
        self._first_tick = max(last_tick + 1, first)
        self._rescan(last_tick)
        return flush

    def close(self) -> None:
        """Close every descriptor."""
        self._readers.close()

    def _note(self, tick: int, current: NDArray[np.uint64], in_reach: NDArray[np.bool_], found: Deltas) -> None:
        """Remember the readings, and what is special about them."""
        memory, counter = self._memory, ~self._layout.widths.gauge
        seen = current != ABSENT
        resets = found.resets | (memory.renewed & seen)
        if resets.any():
            self._resets += [(int(row), tick) for row in np.flatnonzero(resets)]
        wide = (found.values != MISSING) & counter & (memory.seen_tick != tick - 1)
        if wide.any():
            self._spans += [(int(row), tick, tick - int(memory.seen_tick[row])) for row in np.flatnonzero(wide)]
        memory.dropped |= seen & ~in_reach & (memory.seen_tick != NEVER) & counter
        memory.saturated |= found.saturated
        memory.renewed &= ~seen
        memory.last[seen] = current[seen]
        memory.seen_tick[seen] = tick

    def _pack(self, first: int, last_tick: int) -> PortsFlush:
        layout = self._layout
        values = np.full((len(layout.keys), max(last_tick - first + 1, 0)), MISSING, dtype=np.int64)
        for tick, column in self._columns.items():
            if first <= tick <= last_tick:
                values[:, tick - first] = column
        resets = [(row, tick - first) for row, tick in self._resets if first <= tick <= last_tick]
        spans = [(row, tick - first, n) for row, tick, n in self._spans if first <= tick <= last_tick]
        self._observed.add(values, unclean={row for row, _ in resets} | {row for row, _, _ in spans})
        told = (values != MISSING).any(axis=1)
        told[[row for row, _ in resets]] = True  # a reset's name must be in `names`, even if nothing else is known
        kept = np.flatnonzero(told)
        used, name = np.unique(layout.name[kept], return_inverse=True)
        new_row = {int(row): index for index, row in enumerate(kept)} if spans else {}
        highest_mbps = self._observed.highest_mbps
        return PortsFlush(
            first_tick=first,
            ports=tuple(
                port_info(place, settings_mbps=self._settings_mbps, observed_mbps=highest_mbps.get(place.key))
                for place in self._places
            ),
            names=tuple(layout.names[index] for index in used),
            entity=layout.port[kept],
            name=name.astype(np.int32),
            values=values[kept],
            resets=tuple(
                Reset(port=int(layout.port[row]), name=layout.keys[row][1], tick=tick) for row, tick in resets
            ),
            spans=tuple(Span(row=new_row[row], tick=tick, ticks=ticks) for row, tick, ticks in spans),
            gaps=tuple(sorted(self._gaps())),
        )

    def _gaps(self) -> set[Gap]:
        gaps = {gap for place in self._places for gap in place.gaps}
        gaps.update(self._readers.ethtool_gaps())
        gaps.update(gaps_of_rows(self._reasons()))
        if self._skipped_ticks:
            reason = f"{self._skipped_ticks} ticks were slept through"
            gaps.add(Gap(source="sampler", what="ticks", reason=reason))
        return gaps

    def _reasons(self) -> Iterable[tuple[RowKey, str]]:
        keys = self._layout.keys
        for row, reason in self._readers.reasons():
            yield keys[row], reason
        for row in np.flatnonzero(self._memory.saturated).tolist():
            yield keys[row], "at its maximum: more of it cannot be counted"
        for row in np.flatnonzero(self._memory.dropped).tolist():
            yield keys[row], f"not read for over {MAX_SPAN_TICKS} ticks: what it counted meanwhile is left out"

    def _rescan(self, tick: int) -> None:
        """Look for ports that came or went; rows change only here, between two flushes."""
        if self._scanned_tick is None:
            self._scanned_tick = tick
        if tick - self._scanned_tick < self._rescan_ticks or self._columns:
            return
        self._scanned_tick = tick
        places = discover(self._sysfs)
        if places == self._places and not self._readers.changed:
            self._readers.revive()
            return
        readings = self._memory.readings(self._layout)
        self._failures += self._readers.failures
        self._readers.close()
        self._take(places, readings)

    def _take(self, places: tuple[PortPlace, ...], readings: Mapping[RowKey, tuple[int, int]]) -> None:
        """Open everything of `places`; rows that stay keep what is remembered of them."""
        renewed = {place.key for place in places if self._inodes.get(place.key, place.inode) != place.inode}
        self._inodes.update({place.key: place.inode for place in places})
        self._places = places
        self._readers = PortReaders(places, self._statistics)
        self._layout = layout_of(places, self._readers.series)
        self._memory = memory_of(self._layout, readings, renewed)
        self._observed.rows(self._layout.keys, self._layout.multipliers)
