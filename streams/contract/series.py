"""Many integer time series in four byte strings: what moved is spelled out, what stood still is named once.

On the wire (record `Series`), all little-endian:
- an id is a uint32, `entity << 16 | name`: indices into the record's own lists of entities and names;
- `moving_ids` [m] and `moving_values`, int64 [m, ticks] row by row;
- `steady_ids` [s] and `steady_values`, int64 [s]: one value that held in every tick (a counter that did not move
  is a steady 0; a level that stayed is a steady level).
A series that is in neither was not read at all. `MISSING` marks a single tick that could not be read.
Measured against Avro arrays: docs/adr/0002-packed-series.md and bench/array_shapes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.contract.errors import InvalidRecordError

MISSING = -(2**63)
_ID = np.dtype("<u4")
_VALUE = np.dtype("<i8")


class PackedSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The wire form of `Series`."""

    moving_ids: bytes = b""
    moving_values: bytes = b""
    steady_ids: bytes = b""
    steady_values: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """Rows of one value per tick: `values[i]` belongs to entity `entity[i]` and name `name[i]`."""

    entity: NDArray[np.int32]
    name: NDArray[np.int32]
    values: NDArray[np.int64]

    @property
    def ticks(self) -> int:
        """How many ticks each row has."""
        return int(self.values.shape[1])


def empty(ticks: int) -> Series:
    """No rows at all."""
    none = np.zeros(0, np.int32)
    return Series(entity=none, name=none, values=np.zeros((0, ticks), np.int64))


def pack(series: Series) -> PackedSeries:
    """Wire form; rows that are MISSING in every tick are left out (absent is not zero)."""
    values = series.values
    if not len(values):
        return PackedSeries()
    ids = (series.entity.astype(_ID) << 16) | series.name.astype(_ID)
    first = values[:, 0]
    steady = (values == first[:, None]).all(axis=1)
    kept = steady & (first != MISSING)
    return PackedSeries(
        moving_ids=ids[~steady].astype(_ID).tobytes(),
        moving_values=values[~steady].astype(_VALUE).tobytes(),
        steady_ids=ids[kept].astype(_ID).tobytes(),
        steady_values=first[kept].astype(_VALUE).tobytes(),
    )


def unpack(packed: PackedSeries, *, ticks: int, entities: int, names: int) -> Series:
    """Rows of the wire form, moving rows first; raises InvalidRecordError where lengths or indices do not fit."""
    moving_ids, steady_ids = _ids(packed.moving_ids), _ids(packed.steady_ids)
    if len(packed.moving_values) != 8 * ticks * len(moving_ids):
        raise InvalidRecordError(f"moving_values holds {len(packed.moving_values)} bytes, not 8 x ticks x ids")
    if len(packed.steady_values) != 8 * len(steady_ids):
        raise InvalidRecordError(f"steady_values holds {len(packed.steady_values)} bytes, not 8 x ids")
    ids = np.concatenate((moving_ids, steady_ids))
    entity, name = (ids >> 16).astype(np.int32), (ids & 0xFFFF).astype(np.int32)
    if len(ids) and (int(entity.max()) >= entities or int(name.max()) >= names):
        raise InvalidRecordError("a series names an entity or a name that the record does not list")
    values = np.empty((len(ids), ticks), np.int64)
    values[: len(moving_ids)] = np.frombuffer(packed.moving_values, _VALUE).reshape(len(moving_ids), ticks)
    values[len(moving_ids) :] = np.frombuffer(packed.steady_values, _VALUE)[:, None]
    return Series(entity=entity, name=name, values=values)


def pack_pairs(high: Sequence[int], low: Sequence[int]) -> bytes:
    """Pairs of indices below 65,536 as uint32 `high << 16 | low`."""
    return ((np.asarray(high, _ID) << 16) | np.asarray(low, _ID)).astype(_ID).tobytes()


def unpack_pairs(raw: bytes) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Both halves of `pack_pairs`; raises InvalidRecordError where the length does not fit."""
    ids = _ids(raw)
    return (ids >> 16).astype(np.int32), (ids & 0xFFFF).astype(np.int32)


def _ids(raw: bytes) -> NDArray[np.uint32]:
    if len(raw) % 4:
        raise InvalidRecordError(f"series ids hold {len(raw)} bytes, not a multiple of 4")
    return np.frombuffer(raw, _ID)
