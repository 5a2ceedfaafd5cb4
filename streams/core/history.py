"""The last two minutes of what every holder did on a job's nodes, kept packed as it came until somebody asks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.contract.rosters import roster_of
from streams.contract.series import MISSING, PackedSeries
from streams.contract.slices import JobSlice, SlicePort, SliceRoster, Suspect


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One flush."""

    first_tick: int
    ticks: int
    roster: int
    features: PackedSeries


class History(msgspec.Struct, kw_only=True):
    """One node's chunks, oldest first."""

    rosters: dict[int, bytes] = {}  # By number, counted up
    newest_roster: int = -1
    chunks: list[Chunk] = []

    def add(self, piece: JobSlice, *, keep_ticks: int) -> None:
        """Keep a slice's numbers, and drop what is older than `keep_ticks`."""
        if self.rosters.get(self.newest_roster) != piece.roster:
            self.newest_roster += 1
            self.rosters[self.newest_roster] = piece.roster
        self.chunks.append(
            Chunk(
                first_tick=piece.first_tick,
                ticks=piece.ticks,
                roster=self.newest_roster,
                features=piece.features,
            )
        )
        oldest = piece.first_tick + piece.ticks - keep_ticks
        if self.chunks[0].first_tick < oldest:
            self._trim(oldest)

    def _trim(self, oldest: int) -> None:
        dropped = 0
        while dropped < len(self.chunks) and self.chunks[dropped].first_tick < oldest:
            dropped += 1
        del self.chunks[:dropped]
        if dropped == 0:
            return
        first_used = self.chunks[0].roster if self.chunks else self.newest_roster
        for number in [number for number in self.rosters if number < first_used]:
            del self.rosters[number]


_ID = np.dtype("<u4")
_VALUE = np.dtype("<i8")
Key = TypeVar("Key", tuple[str, str], tuple[str, int])
HolderKey = tuple[str, str]  # Holder id, device
PortKey = tuple[str, int]  # Device, port


class Window:
    """A node's series over a range of ticks, NaN where nothing was seen."""

    def __init__(self, history: History, first_tick: int, last_tick: int) -> None:
        self.first_tick = first_tick
        self.ticks = max(last_tick - first_tick + 1, 0)
        self.own: dict[tuple[PortKey, str], NDArray[np.float64]] = {}
        self.ports: dict[tuple[PortKey, str], NDArray[np.float64]] = {}
        self.suspects: dict[tuple[HolderKey, str], NDArray[np.float64]] = {}
        self.who: dict[HolderKey, Suspect] = {}
        self.port_of: dict[PortKey, SlicePort] = {}
        self.covered = np.zeros(self.ticks, bool)
        self.quiet = np.ones(self.ticks, bool)
        inside = [c for c in history.chunks if first_tick <= c.first_tick and c.first_tick + c.ticks - 1 <= last_tick]
        for (number, ticks), chunks in groupby(inside, lambda chunk: (chunk.roster, chunk.ticks)):
            self._add(roster_of(history.rosters[number]), ticks, list(chunks))
        for series in (*self.suspects.values(), *self.own.values()):
            series[~self.covered] = np.nan

    def seen(self, tick_from: int, tick_to: int) -> slice:
        """The part of a series between two ticks, both included."""
        return slice(max(tick_from - self.first_tick, 0), max(tick_to - self.first_tick + 1, 0))

    def mark_slow(self, spans: list[tuple[int, int]], *, margin_ticks: int) -> None:
        """Ticks of earlier episodes say nothing about what holders do while all is well."""
        for first, last in spans:
            self.quiet[self.seen(first - margin_ticks, last + margin_ticks)] = False

    def _add(self, roster: SliceRoster, ticks: int, chunks: list[Chunk]) -> None:
        """Chunks of one length that mean the same entities and names, all at once."""
        offsets = np.array([chunk.first_tick - self.first_tick for chunk in chunks], np.int64)
        columns = (offsets[:, None] + np.arange(ticks)).ravel()
        self.covered[columns] = True
        port_keys = [(port.device, port.port) for port in roster.ports]
        self.port_of.update(zip(port_keys, roster.ports, strict=True))
        keys = [(suspect.holder, suspect.device) for suspect in roster.suspects]
        self.who.update(zip(keys, roster.suspects, strict=True))
        rows = _rows([chunk.features for chunk in chunks], offsets, ticks)
        ids, place = np.unique(rows.ids, return_inverse=True)
        block = np.zeros((len(ids), self.ticks))
        block[ids >> 16 < len(port_keys)] = np.nan
        block[place[:, None], rows.column[:, None] + np.arange(ticks)] = rows.values
        for row, identity in zip(block, ids.tolist(), strict=True):
            entity, name = identity >> 16, roster.feature_names[identity & 0xFFFF]
            if entity < len(port_keys):
                _put(self.ports, (port_keys[entity], name), row, columns)
            elif entity < 2 * len(port_keys):
                _put(self.own, (port_keys[entity - len(port_keys)], name), row, columns)
            else:
                _put(self.suspects, (keys[entity - 2 * len(port_keys)], name), row, columns)


def _put(
    into: dict[tuple[Key, str], NDArray[np.float64]],
    key: tuple[Key, str],
    row: NDArray[np.float64],
    columns: NDArray[np.int64],
) -> None:
    """A row where it belongs: its first chunks make it, later ones fill the columns that they cover."""
    known = into.get(key)
    if known is None:
        into[key] = row
    else:
        known[columns] = row[columns]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Rows of many packed series: ids, the column at which each begins, and values, NaN where missing."""

    ids: NDArray[np.int64]
    column: NDArray[np.int64]
    values: NDArray[np.float64]


def _rows(packed: list[PackedSeries], offsets: NDArray[np.int64], ticks: int) -> _Rows:
    moving = np.frombuffer(b"".join([one.moving_values for one in packed]), _VALUE).reshape(-1, ticks)
    steady = np.frombuffer(b"".join([one.steady_values for one in packed]), _VALUE)
    raw = np.concatenate((moving, np.repeat(steady, ticks).reshape(-1, ticks)))
    values = raw.astype(np.float64)
    values[raw == MISSING] = np.nan
    ids = b"".join([*(one.moving_ids for one in packed), *(one.steady_ids for one in packed)])
    lengths = [len(one.moving_ids) // 4 for one in packed] + [len(one.steady_ids) // 4 for one in packed]
    return _Rows(
        ids=np.frombuffer(ids, _ID).astype(np.int64),
        column=np.repeat(np.concatenate((offsets, offsets)), lengths),
        values=values,
    )
