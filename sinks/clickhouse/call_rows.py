"""nccl-throughput as rows: one per tick, communicator, operation and size."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from sinks.clickhouse.columns import ArrayRows, Coded, Integers, coded
from sinks.clickhouse.series_rows import bases
from streams.contract.calls import COLUMNS, Column, Op, Timing
from streams.contract.inputs import NcclThroughput
from streams.contract.ticks import TICK_US

UNKNOWN_RANK = -1


def call_rows(records: Sequence[NcclThroughput]) -> ArrayRows:
    """One row per row of the records; their times become epoch microseconds."""
    matrix = np.frombuffer(b"".join(record.rows for record in records), "<i8").reshape(-1, COLUMNS)
    counts = [len(record.rows) // (8 * COLUMNS) for record in records]
    record = np.repeat(np.arange(len(records)), counts)
    first_tick = np.array([r.first_tick for r in records], np.int64)[record]
    communicator = bases(len(r.communicators) for r in records)[record] + matrix[:, Column.COMMUNICATOR]
    began_us = first_tick * TICK_US
    return ArrayRows(
        table="nccl_calls",
        count=len(matrix),
        columns={
            "cluster": coded(r.cluster for r in records).at(record),
            "node": coded(r.node for r in records).at(record),
            **{name: _picked(column, communicator) for name, column in _communicators(records).items()},
            "op": _named(matrix[:, Column.OP], Op),
            "dtype": _column(matrix, Column.DTYPE),
            "count": _column(matrix, Column.COUNT),
            "bytes": _column(matrix, Column.BYTES),
            "calls": _column(matrix, Column.CALLS),
            "failed": _column(matrix, Column.FAILED),
            "first_seq": _column(matrix, Column.FIRST_SEQ),
            "last_seq": _column(matrix, Column.LAST_SEQ),
            "first_us": began_us + matrix[:, Column.FIRST_US],
            "last_us": began_us + matrix[:, Column.LAST_US],
            "timed": _column(matrix, Column.TIMED),
            "min_us": _column(matrix, Column.MIN_US),
            "sum_us": _column(matrix, Column.SUM_US),
            "max_us": _column(matrix, Column.MAX_US),
            "timing": _named(matrix[:, Column.TIMING], Timing),
            "tick": first_tick + matrix[:, Column.TICK_OFFSET],
            "source": coded(r.source.value for r in records).at(record),
        },
    )


def _communicators(records: Sequence[NcclThroughput]) -> dict[str, Coded | Integers]:
    """The columns that say whose a communicator is, over the communicators of all records in turn."""
    ends = [(r.processes[end.process], end) for r in records for end in r.communicators]
    return {
        "pid": np.array([process.pid for process, _ in ends], np.int64),
        "process": coded(process.comm for process, _ in ends),
        "pod_uid": coded(process.pod_uid for process, _ in ends),
        "container_id": coded(process.container_id for process, _ in ends),
        "comm": coded(end.comm for _, end in ends),
        "rank": _known([end.rank for _, end in ends]),
        "nranks": _known([end.nranks for _, end in ends]),
    }


def _known(values: Sequence[int | None]) -> NDArray[np.int64]:
    return np.array([UNKNOWN_RANK if value is None else value for value in values], np.int64)


def _picked(column: Coded | Integers, rows: NDArray[np.int64]) -> Coded | Integers:
    return column.at(rows) if isinstance(column, Coded) else column[rows]


def _column(matrix: NDArray[np.int64], column: Column) -> NDArray[np.int64]:
    return np.ascontiguousarray(matrix[:, column])


def _named(codes: NDArray[np.int64], names: type[IntEnum]) -> Coded:
    """Codes in words; one that this version does not know is spelled as its number."""
    distinct, at = np.unique(codes, return_inverse=True)
    known = {int(member): member.name.lower() for member in names}
    return Coded(codes=at.astype(np.int32), values=[known.get(code, str(code)) for code in distinct.tolist()])
