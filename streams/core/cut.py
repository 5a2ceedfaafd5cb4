"""Cuts packed series for one reader: which rows, scaled and added how, under which new ids. The core's hot path.

A plan depends on which rows moved and on what stood still, which seldom changes from flush to flush; with a cached
plan a cut is a gather, at most one product and one sum (bench/core_cost.py).
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
class Cut:
    """A compiled plan."""

    take: NDArray[np.int64]
    times: NDArray[np.int64] | None
    starts: NDArray[np.int64] | None
    offset: NDArray[np.int64] | None
    moving_ids: bytes
    steady_ids: bytes
    steady_values: bytes


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
        take=take,
        times=None if (times == 1).all() else times[:, None],
        starts=None if len(starts) == len(ids) else starts,
        offset=offset[:, None] if offset.any() else None,
        moving_ids=moved.astype(_ID).tobytes(),
        steady_ids=steady_ids[kept].astype(_ID).tobytes(),
        steady_values=sums[kept].astype(_VALUE).tobytes(),
    )


def cut(plan: Cut, moving: NDArray[np.int64], *, missing: bool) -> PackedSeries:
    """Apply a plan to a record's moving rows; `missing` says that some ticks in them are MISSING."""
    if not len(plan.take):
        return PackedSeries(steady_ids=plan.steady_ids, steady_values=plan.steady_values)
    rows = moving[plan.take]
    unseen = rows == MISSING if missing else None
    if plan.times is not None:
        rows = rows * plan.times
    if plan.starts is not None:
        rows = np.add.reduceat(rows, plan.starts, axis=0)
        unseen = np.logical_or.reduceat(unseen, plan.starts, axis=0) if unseen is not None else None
    if plan.offset is not None:
        rows = rows + plan.offset
    if unseen is not None:
        rows[unseen] = MISSING
    return PackedSeries(
        moving_ids=plan.moving_ids,
        moving_values=rows.tobytes(),
        steady_ids=plan.steady_ids,
        steady_values=plan.steady_values,
    )


def moving_rows(packed: PackedSeries, ticks: int) -> NDArray[np.int64]:
    """The moving rows of a record, not copied."""
    return np.frombuffer(packed.moving_values, _VALUE).reshape(-1, ticks)


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
