"""Columns of rows on their way into a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Coded:
    """A column of few distinct strings: row i holds `values[codes[i]]`."""

    codes: NDArray[np.int32]
    values: Sequence[str]

    def at(self, rows: Integers) -> Coded:
        """The column that holds row `rows[i]` of this one in its row i."""
        return Coded(codes=self.codes[rows], values=self.values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holes:
    """A column of integers of which some are not known."""

    values: NDArray[np.int64]
    missing: NDArray[np.bool_]


ArrayColumn = Coded | Holes | Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayRows:
    """Many rows of one table, as arrays: the samples."""

    table: str
    columns: Mapping[str, ArrayColumn]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRows:
    """A few rows of one table, as Python values column by column: everything that is not a sample."""

    table: str
    columns: Mapping[str, Sequence[object]]
    count: int


Rows = ArrayRows | ValueRows


def coded(values: Iterable[str]) -> Coded:
    """A column of strings, each distinct one numbered in the order of its first appearance."""
    codes: dict[str, int] = {}
    numbers = [codes.setdefault(value, len(codes)) for value in values]
    return Coded(codes=np.array(numbers, np.int32), values=list(codes))


def value_rows(table: str, rows: Sequence[Mapping[str, object]]) -> ValueRows:
    """Rows given one by one; all must have the same columns."""
    names = list(rows[0]) if rows else []
    return ValueRows(table=table, columns={name: [row[name] for row in rows] for name in names}, count=len(rows))
