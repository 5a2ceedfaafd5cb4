"""Packed series of many records as runs: what moved tick by tick, what stood still once per flush, no zeros."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streams.contract.series import MISSING, PackedSeries

# Over all records of a batch at once: per record the numpy calls alone would cost more than the insert
# (bench/clickhouse_rows.py).


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """Row i: `value[i]` held in `ticks[i]` ticks from `tick[i]` on."""

    record: NDArray[np.int32]  # Index into the records that were given
    entity: NDArray[np.int32]  # As the record numbers them
    name: NDArray[np.int32]
    tick: NDArray[np.int64]
    ticks: NDArray[np.uint16]
    value: NDArray[np.int64]

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Where the value could not be read."""
        return np.asarray(self.value == MISSING)


def runs(packed: Sequence[PackedSeries], first_tick: Sequence[int], ticks: Sequence[int]) -> Runs:
    """The runs that are not zero; the series must have been validated (wire.Decoder does)."""
    record_ticks = np.asarray(ticks, np.int64)
    record_first = np.asarray(first_tick, np.int64)
    parts = [
        _moving(packed, record_first, record_ticks, wanted)
        for wanted in np.unique(record_ticks).tolist()  # Nearly always one: the flush length
    ]
    return _joined([*parts, _steady(packed, record_first, record_ticks)])


def _moving(packed: Sequence[PackedSeries], first: NDArray[np.int64], ticks: NDArray[np.int64], wanted: int) -> Runs:
    chosen = np.flatnonzero(ticks == wanted).tolist()
    ids, record = _ids([packed[index].moving_ids for index in chosen], chosen)
    values = np.frombuffer(b"".join(packed[index].moving_values for index in chosen), "<i8")
    at = np.flatnonzero(values)
    row, offset = np.divmod(at, wanted) if wanted else (at, at)
    record = record[row]
    return Runs(
        record=record,
        entity=_entity(ids[row]),
        name=_name(ids[row]),
        tick=first[record] + offset,
        ticks=np.ones(len(at), np.uint16),
        value=values[at],
    )


def _steady(packed: Sequence[PackedSeries], first: NDArray[np.int64], ticks: NDArray[np.int64]) -> Runs:
    ids, record = _ids([series.steady_ids for series in packed], range(len(packed)))
    values = np.frombuffer(b"".join(series.steady_values for series in packed), "<i8")
    at = np.flatnonzero(values)
    record = record[at]
    return Runs(
        record=record,
        entity=_entity(ids[at]),
        name=_name(ids[at]),
        tick=first[record],
        ticks=ticks[record].astype(np.uint16),
        value=values[at],
    )


def _ids(raw: Sequence[bytes], record: Sequence[int]) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
    """Every id, and the record that it belongs to."""
    counts = np.fromiter((len(part) // 4 for part in raw), np.int64, len(raw))
    return np.frombuffer(b"".join(raw), "<u4"), np.repeat(np.asarray(record, np.int32), counts)


def _entity(ids: NDArray[np.uint32]) -> NDArray[np.int32]:
    return (ids >> 16).astype(np.int32)


def _name(ids: NDArray[np.uint32]) -> NDArray[np.int32]:
    return (ids & 0xFFFF).astype(np.int32)


def _joined(parts: Sequence[Runs]) -> Runs:
    return Runs(
        record=np.concatenate([part.record for part in parts]),
        entity=np.concatenate([part.entity for part in parts]),
        name=np.concatenate([part.name for part in parts]),
        tick=np.concatenate([part.tick for part in parts]),
        ticks=np.concatenate([part.ticks for part in parts]),
        value=np.concatenate([part.value for part in parts]),
    )


def bases(sizes: Iterable[int]) -> NDArray[np.int64]:
    """Where each record's part begins in a list of all records' parts."""
    ends = np.cumsum(np.fromiter(sizes, np.int64))
    return np.concatenate((np.zeros(1, np.int64), ends[:-1]))


def distinct_lists(lists: Iterable[Sequence[str]]) -> tuple[NDArray[np.int64], list[str]]:
    """Where each record's list of names begins in a list of all distinct ones: nodes of a kind name the same."""
    begins: dict[tuple[str, ...], int] = {}
    names: list[str] = []
    found = []
    for part in lists:
        key = tuple(part)
        if (begin := begins.get(key)) is None:
            begin = begins[key] = len(names)
            names += part
        found.append(begin)
    return np.array(found, np.int64), names
