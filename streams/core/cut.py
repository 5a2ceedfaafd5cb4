"""Cuts packed series for one reader: which rows, scaled and added how, under which new ids. The core's hot path.

A plan depends on which rows moved and on what stood still, which seldom changes from flush to flush; with a cached
plan all cuts of a node are one gather, at most one product and one sum (bench/core_cost.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streams.contract.series import MISSING, PackedSeries

_ID = np.dtype("<u4")
_VALUE = np.dtype("<i8")
NOWHERE = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """For each row id of a record, by `entity * names + name`: its new id or NOWHERE, and its multiplier."""

    names: int
    new_id: NDArray[np.int64]
    multiplier: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """How moving rows become rows of the result: taken, scaled, added, and what stood still beside them added too."""

    take: NDArray[np.int64]
    times: NDArray[np.int64] | None
    starts: NDArray[np.int64] | None
    offset: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """A compiled plan: its rows, and everything of the result but their values."""

    sums: Sums
    shell: PackedSeries

    @property
    def rows(self) -> int:
        """How many moving rows the result has."""
        return len(self.shell.moving_ids) // 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cuts:
    """Several readers' plans, applied in one pass: result n ends at row `ends[n]`."""

    sums: Sums
    shells: list[PackedSeries]
    ends: list[int]


def compile_cut(packed: PackedSeries, target: Target, *, keep_zeros: bool) -> Cut:
    """The plan for one pattern. Rows that share a new id are added; steady zeros are dropped unless `keep_zeros`."""
    moving, steady = _new_ids(packed.moving_ids, target), _new_ids(packed.steady_ids, target)
    take = np.flatnonzero(moving.ids != NOWHERE)
    take = take[np.argsort(moving.ids[take], kind="stable")]
    ids = moving.ids[take]
    fresh = np.ones(len(ids), bool)
    fresh[1:] = ids[1:] != ids[:-1]
    starts = np.flatnonzero(fresh)
    moved = ids[starts]
    still = np.flatnonzero(steady.ids != NOWHERE)
    values = np.frombuffer(packed.steady_values, _VALUE)[still] * steady.multiplier[still]
    steady_ids, inverse = np.unique(steady.ids[still], return_inverse=True)
    sums = np.zeros(len(steady_ids), np.int64)
    np.add.at(sums, inverse, values)
    beside = np.isin(steady_ids, moved)  # Steady parts of rows that move
    offset = np.zeros(len(moved), np.int64)
    offset[np.searchsorted(moved, steady_ids[beside])] = sums[beside]
    kept = ~beside if keep_zeros else ~beside & (sums != 0)
    times = moving.multiplier[take]
    return Cut(
        sums=_simplest(take, times, starts, offset),
        shell=PackedSeries(
            moving_ids=moved.astype(_ID).tobytes(),
            steady_ids=steady_ids[kept].astype(_ID).tobytes(),
            steady_values=sums[kept].astype(_VALUE).tobytes(),
        ),
    )


def together(readers: list[tuple[Cut, Cut]], *, second_from: int) -> Cuts:
    """One plan for many readers, each of two series whose moving rows lie in one matrix, the second's from a row on."""
    parts = [(plan, row) for pair in readers for plan, row in zip(pair, (0, second_from), strict=True)]
    taken = np.cumsum([0, *(len(plan.sums.take) for plan, _ in parts)])
    filled = [_spelled_out(plan.sums) for plan, _ in parts]
    none = np.zeros(0, np.int64)
    return Cuts(
        sums=_simplest(
            np.concatenate([none, *(plan.sums.take + row for plan, row in parts)]),
            np.concatenate([none, *(times for times, _, _ in filled)]),
            np.concatenate([none, *(starts + begin for (_, starts, _), begin in zip(filled, taken, strict=False))]),
            np.concatenate([none, *(offset for _, _, offset in filled)]),
        ),
        shells=[_beside(first.shell, second.shell) for first, second in readers],
        ends=np.cumsum([first.rows + second.rows for first, second in readers], dtype=np.int64).tolist(),
    )


def cut(plan: Cut, moving: NDArray[np.int64], *, missing: bool) -> PackedSeries:
    """Apply a plan to a record's moving rows; `missing` says that some ticks in them are MISSING."""
    return _with_values(plan.shell, _apply(plan.sums, moving, missing=missing).tobytes())


def cut_all(plan: Cuts, moving: NDArray[np.int64], *, missing: bool) -> list[PackedSeries]:
    """Apply many readers' plans at once."""
    raw, row_bytes = _apply(plan.sums, moving, missing=missing).tobytes(), _VALUE.itemsize * moving.shape[1]
    found, begin = [], 0
    for shell, rows in zip(plan.shells, plan.ends, strict=True):
        end = rows * row_bytes
        found.append(_with_values(shell, raw[begin:end]))
        begin = end
    return found


def _apply(sums: Sums, moving: NDArray[np.int64], *, missing: bool) -> NDArray[np.int64]:
    rows = moving[sums.take]
    if not len(rows):
        return rows
    unseen = rows == MISSING if missing else None
    if sums.times is not None:
        rows = rows * sums.times
    if sums.starts is not None:
        rows = np.add.reduceat(rows, sums.starts, axis=0)
        unseen = np.logical_or.reduceat(unseen, sums.starts, axis=0) if unseen is not None else None
    if sums.offset is not None:
        rows = rows + sums.offset
    if unseen is not None:
        rows[unseen] = MISSING
    return rows


def _simplest(
    take: NDArray[np.int64], times: NDArray[np.int64], starts: NDArray[np.int64], offset: NDArray[np.int64]
) -> Sums:
    """Without the parts that would change nothing."""
    return Sums(
        take=take,
        times=None if (times == 1).all() else times[:, None],
        starts=None if len(starts) == len(take) else starts,
        offset=offset[:, None] if offset.any() else None,
    )


def _spelled_out(sums: Sums) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Its times, starts and offset, the parts that would change nothing too."""
    count = len(sums.take)
    starts = np.arange(count) if sums.starts is None else sums.starts
    return (
        np.ones(count, np.int64) if sums.times is None else sums.times.ravel(),
        starts,
        np.zeros(len(starts), np.int64) if sums.offset is None else sums.offset.ravel(),
    )


def _beside(first: PackedSeries, second: PackedSeries) -> PackedSeries:
    return PackedSeries(
        moving_ids=first.moving_ids + second.moving_ids,
        steady_ids=first.steady_ids + second.steady_ids,
        steady_values=first.steady_values + second.steady_values,
    )


def _with_values(shell: PackedSeries, values: bytes) -> PackedSeries:
    return PackedSeries(
        moving_ids=shell.moving_ids,
        moving_values=values,
        steady_ids=shell.steady_ids,
        steady_values=shell.steady_values,
    )


def moving_rows(ticks: int, *packed: PackedSeries) -> NDArray[np.int64]:
    """The moving rows of a record's series, one below the other."""
    return np.frombuffer(b"".join([series.moving_values for series in packed]), _VALUE).reshape(-1, ticks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _NewIds:
    ids: NDArray[np.int64]
    multiplier: NDArray[np.int64]


def _new_ids(raw: bytes, target: Target) -> _NewIds:
    old = np.frombuffer(raw, _ID).astype(np.int64)
    key = (old >> 16) * target.names + (old & 0xFFFF)
    ids = target.new_id[key]
    return _NewIds(
        ids=ids, multiplier=np.ones(len(ids), np.int64) if target.multiplier is None else target.multiplier[key]
    )
