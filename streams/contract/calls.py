"""The rows of NCCL calls: one int64 matrix in one byte string, its columns, operation and type codes."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from streams.contract.errors import InvalidRecordError


class Column(IntEnum):
    """The columns of `rows`, in wire order; a new column is appended, never inserted."""

    TICK_OFFSET = 0  # ticks after the record's first tick
    COMMUNICATOR = 1  # index into the record's communicators
    OP = 2  # Op
    DTYPE = 3  # ncclDataType_t as the library numbers it
    COUNT = 4  # elements in one call
    BYTES = 5  # bytes in one call by the library's own convention (count x width); -1: unknown type
    CALLS = 6  # successful and failed together
    FAILED = 7  # calls that returned an error (ncclInProgress is not one)
    FIRST_SEQ = 8  # per (process, communicator), counted from 1 by the producer
    LAST_SEQ = 9
    FIRST_US = 10  # microseconds after the record's first tick began
    LAST_US = 11
    TIMED = 12  # how many of the calls have a duration
    MIN_US = 13
    SUM_US = 14
    MAX_US = 15
    TIMING = 16  # Timing


class Op(IntEnum):
    """Operations, numbered by us: NCCL's own numbers are internal and have moved."""

    UNKNOWN = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    BROADCAST = 4
    REDUCE = 5
    SEND = 6
    RECV = 7
    ALL_TO_ALL = 8
    GATHER = 9
    SCATTER = 10
    PUT_SIGNAL = 11
    SIGNAL = 12
    WAIT_SIGNAL = 13


class Timing(IntEnum):
    """What the times of a row are: enqueue time says when the host asked, never how long the GPU took."""

    ENQUEUE = 0
    KERNEL_GPU = 1
    KERNEL_CPU = 2
    COLLECTIVE_CPU = 3
    SIMULATED = 4


COLUMNS = len(Column)
DTYPE_WIDTH_BYTES = {0: 1, 1: 1, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 1, 11: 1}
_VALUE = np.dtype("<i8")


def pack_rows(rows: NDArray[np.int64]) -> bytes:
    """Wire form of an [n, COLUMNS] matrix."""
    return rows.astype(_VALUE).tobytes()


def unpack_rows(raw: bytes, *, communicators: int, ticks: int) -> NDArray[np.int64]:
    """The [n, COLUMNS] matrix; raises InvalidRecordError where the length or an index does not fit."""
    if len(raw) % (8 * COLUMNS):
        raise InvalidRecordError(f"rows hold {len(raw)} bytes, not a multiple of {8 * COLUMNS}")
    rows = np.frombuffer(raw, _VALUE).reshape(-1, COLUMNS).astype(np.int64)
    if len(rows):
        index, tick = rows[:, Column.COMMUNICATOR], rows[:, Column.TICK_OFFSET]
        if int(index.min()) < 0 or int(index.max()) >= communicators:
            raise InvalidRecordError("a row names a communicator that the record does not list")
        if int(tick.min()) < 0 or int(tick.max()) >= ticks:
            raise InvalidRecordError("a row lies outside the record's ticks")
    return rows
