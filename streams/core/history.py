"""The last two minutes of what every holder did on a job's nodes, kept packed as it came until somebody asks."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.contract.series import MISSING, PackedSeries, unpack
from streams.contract.slices import JobSlice, SlicePort, Suspect


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """What the entities and names of packed series stand for, shared by many chunks."""

    ports: list[SlicePort]
    suspects: list[Suspect]
    port_features: list[str]
    holder_features: list[str]


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One flush."""

    first_tick: int
    ticks: int
    names: int
    own: PackedSeries
    ports: PackedSeries
    suspects: PackedSeries


class History(msgspec.Struct, kw_only=True):
    """One node's chunks, oldest first."""

    names: dict[int, Names] = {}
    newest_names: int = -1
    chunks: list[Chunk] = []

    def add(self, piece: JobSlice, *, keep_ticks: int) -> None:
        """Keep a slice's numbers, and drop what is older than `keep_ticks`."""
        newest = self.names.get(self.newest_names)
        if newest is None or not _same_names(newest, piece):
            self.newest_names += 1
            self.names[self.newest_names] = Names(
                ports=piece.ports,
                suspects=piece.suspects,
                port_features=piece.port_feature_names,
                holder_features=piece.suspect_feature_names,
            )
        self.chunks.append(
            Chunk(
                first_tick=piece.first_tick,
                ticks=piece.ticks,
                names=self.newest_names,
                own=piece.job_features,
                ports=piece.port_features,
                suspects=piece.suspect_features,
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
        first_used = self.chunks[0].names if self.chunks else self.newest_names
        for number in [number for number in self.names if number < first_used]:
            del self.names[number]


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
        for chunk in history.chunks:
            if chunk.first_tick <= last_tick and chunk.first_tick + chunk.ticks > first_tick:
                self._add(history.names[chunk.names], chunk)
        for series in (*self.suspects.values(), *self.own.values()):
            series[~self.covered] = np.nan

    def seen(self, tick_from: int, tick_to: int) -> slice:
        """The part of a series between two ticks, both included."""
        return slice(max(tick_from - self.first_tick, 0), max(tick_to - self.first_tick + 1, 0))

    def mark_slow(self, spans: list[tuple[int, int]], *, margin_ticks: int) -> None:
        """Ticks of earlier episodes say nothing about what holders do while all is well."""
        for first, last in spans:
            self.quiet[self.seen(first - margin_ticks, last + margin_ticks)] = False

    def _add(self, names: Names, chunk: Chunk) -> None:
        offset = chunk.first_tick - self.first_tick
        low, high = max(offset, 0), min(offset + chunk.ticks, self.ticks)
        span, part = slice(low, high), slice(low - offset, high - offset)
        self.covered[span] = True
        port_keys = [(port.device, port.port) for port in names.ports]
        self.port_of.update(zip(port_keys, names.ports, strict=True))
        keys = [(suspect.holder, suspect.device) for suspect in names.suspects]
        self.who.update(zip(keys, names.suspects, strict=True))
        zeros, unseen = 0.0, np.nan
        holder_names = names.holder_features
        self._fill(self.own, port_keys, holder_names, chunk.own, chunk.ticks, span, part, zeros)
        self._fill(self.ports, port_keys, names.port_features, chunk.ports, chunk.ticks, span, part, unseen)
        self._fill(self.suspects, keys, holder_names, chunk.suspects, chunk.ticks, span, part, zeros)

    def _fill(
        self,
        into: dict[tuple[Key, str], NDArray[np.float64]],
        keys: list[Key],
        names: list[str],
        packed: PackedSeries,
        ticks: int,
        span: slice,
        part: slice,
        absent: float,
    ) -> None:
        series = unpack(packed, ticks=ticks, entities=len(keys), names=len(names))
        values = np.where(series.values == MISSING, np.nan, series.values)[:, part]
        for entity, name, row in zip(series.entity.tolist(), series.name.tolist(), values, strict=True):
            key = (keys[entity], names[name])
            whole = into.get(key)
            if whole is None:
                whole = into[key] = np.full(self.ticks, absent)
            whole[span] = row


def _same_names(names: Names, piece: JobSlice) -> bool:
    return (
        names.suspects == piece.suspects
        and names.ports == piece.ports
        and names.holder_features == piece.suspect_feature_names
        and names.port_features == piece.port_feature_names
    )
