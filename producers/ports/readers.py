"""Everything that is read once a tick: one slot per counter of every port."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from producers.ports.delta import ABSENT
from producers.ports.discover import PortPlace
from producers.ports.ethtool_read import EthtoolReader, Statistics
from producers.ports.flush import Gap
from producers.ports.read import FileReader, leading_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One row: the index of its port and its counter's prefixed name."""

    port: int
    name: str


class PortReaders:
    """Open files, states and ethtool statistics of `places`; row i of every reading is `series[i]`."""

    def __init__(self, places: Sequence[PortPlace], statistics: Statistics) -> None:
        counters = [(index, counter) for index, place in enumerate(places) for counter in place.counters]
        series = [Series(port=index, name=counter.name) for index, counter in counters]
        self._files = FileReader([counter.path for _, counter in counters])
        self._states_at = len(series)
        state_files: list[Path] = []
        for index, place in enumerate(places):
            for field in ("state", "phys_state"):
                series.append(Series(port=index, name=f"port/{field}"))
                state_files.append(place.folder / field)
        self._states = FileReader(state_files, parse=leading_code)
        self._ethtool: list[tuple[int, EthtoolReader]] = []
        for index, place in enumerate(places):
            reader = EthtoolReader(place.ethtool_netdevs, statistics, place.key)
            self._ethtool.append((len(series), reader))
            series += [Series(port=index, name=name) for name in reader.names]
        self.series = tuple(series)
        self._raw = [ABSENT] * len(series)

    def read(self) -> NDArray[np.uint64]:
        """One reading of every row; ABSENT where there is none."""
        self._files.read(self._raw)
        self._states.read(self._raw, self._states_at)
        for offset, reader in self._ethtool:
            reader.read(self._raw, offset)
        return np.array(self._raw, dtype=np.uint64)

    def reasons(self) -> Iterable[tuple[int, str]]:
        """Why a row's file is ABSENT now."""
        yield from self._files.reasons.items()
        yield from ((self._states_at + slot, reason) for slot, reason in self._states.reasons.items())

    def ethtool_gaps(self) -> Iterable[Gap]:
        """What ethtool does not give, and why."""
        return (gap for _, reader in self._ethtool for gap in reader.gaps)

    @property
    def failures(self) -> Counter[str]:
        """Failed reads by reason."""
        return self._files.failures + self._states.failures

    @property
    def changed(self) -> bool:
        """True when a driver's list of statistics is no longer what it was: make new readers."""
        return any(reader.changed for _, reader in self._ethtool)

    def revive(self) -> None:
        """Try files again that were given up."""
        self._files.revive()
        self._states.revive()

    def close(self) -> None:
        """Close every file."""
        self._files.close()
        self._states.close()
