"""What NCCL's probes report, decoded: rows of calls, births and deaths of communicators."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from streams.contract.calls import DTYPE_WIDTH_BYTES, Op

NO_DTYPE = 0xFFFFFFFF
UNKNOWN_NUMBER = -(2**31)
UNIQUE_ID_BYTES = 128
NCCL_SUCCESS, NCCL_IN_PROGRESS = 0, 7


class CommFunction(IntEnum):
    """Which function made or ended a communicator; numbered as in bpf/nccl_comms.c."""

    INIT_RANK = 1
    INIT_RANK_CONFIG = 2
    INIT_RANK_SCALABLE = 3
    INIT_ALL = 4
    SPLIT = 5
    SHRINK = 6
    GROW = 7
    FINALIZE = 8
    DESTROY = 9
    ABORT = 10
    PROCESS_EXIT = 11  # nobody called anything: the process is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """Calls of one kind in one tick; times are wall-clock nanoseconds at the call, in 100 ms ticks since 1970.

    A row is a difference: rows with equal keys add up. `failed` counts returns, in the tick of the return, so a slow
    failing call gives a row with no calls.
    """

    tick: int
    pid: int
    cgroup_id: int
    comm_ptr: int
    op: Op
    dtype: int | None  # None: the operation has none
    count: int
    calls: int  # failed ones included
    failed: int  # neither ncclSuccess nor ncclInProgress
    first_seq: int  # per (process, communicator), from 1; 0: the number was lost, or the row has no call
    last_seq: int
    first_ns: int
    last_ns: int

    @property
    def call_bytes(self) -> int | None:
        """Bytes of one call: count times the type's size; None for a type that we do not know."""
        return call_bytes(self.count, self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommEvent:
    """A communicator was asked for, or ended; what the call did not say is None."""

    function: CommFunction
    pid: int
    cgroup_id: int
    comm_ptr: int  # 0: the call failed before there was one
    parent_ptr: int | None
    rank: int | None
    nranks: int | None
    color: int | None
    order_key: int | None
    unique_id_hash: str | None
    time_ns: int  # wall clock at entry
    returned_ns: int
    result: int

    @property
    def is_birth(self) -> bool:
        """True for the functions that make a communicator."""
        return self.function < CommFunction.FINALIZE

    @property
    def failed(self) -> bool:
        """True when the call returned an error; ncclInProgress is not one."""
        return self.result not in (NCCL_SUCCESS, NCCL_IN_PROGRESS)


def call_bytes(count: int, dtype: int | None) -> int | None:
    """Bytes of one call, None for an unknown type; operations without data move 0."""
    if dtype is None:
        return 0
    width = DTYPE_WIDTH_BYTES.get(dtype)
    return None if width is None else count * width


def unique_id_hash(unique_id: bytes) -> str:
    """A 64-bit hash of an ncclUniqueId, equal on all ranks: DJB2a over signed bytes.

    It is NCCL's own hash (commHash, "commId" in its logs) up to the 2.2x releases, checked against 2.21.5's code;
    2.32 has another one, so do not expect to find this number in its logs.
    """
    value = 5381
    for byte in unique_id:
        value = (value * 33 ^ (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFFFFFFFFFF
    return f"0x{value:x}"


def decode_call(key: Any, value: Any, *, calls: int, failed: int) -> CallRow:
    """A row from one map entry and what is new in it since the last look."""
    return CallRow(
        tick=key.tick,
        pid=key.tgid,
        cgroup_id=value.cgroup_id,
        comm_ptr=key.comm,
        op=Op(key.op) if key.op in Op._value2member_map_ else Op.UNKNOWN,
        dtype=None if key.dtype == NO_DTYPE else key.dtype,
        count=key.count,
        calls=calls,
        failed=failed,
        first_seq=value.first_seq,
        last_seq=value.last_seq,
        first_ns=value.first_ns,
        last_ns=value.last_ns,
    )


def decode_event(raw: Any) -> CommEvent:
    """An event from the queue's structure."""
    return CommEvent(
        function=CommFunction(raw.function),
        pid=raw.tgid,
        cgroup_id=raw.cgroup_id,
        comm_ptr=raw.comm,
        parent_ptr=raw.parent or None,
        rank=_known(raw.rank),
        nranks=_known(raw.nranks),
        color=_known(raw.color),
        order_key=_known(raw.order_key),
        unique_id_hash=unique_id_hash(bytes(raw.unique_id)) if raw.has_unique_id else None,
        time_ns=raw.entered_ns,
        returned_ns=raw.returned_ns,
        result=raw.result,
    )


def _known(number: int) -> int | None:
    return None if number == UNKNOWN_NUMBER else number
