"""Short ways to make the kernel side's records in tests."""

from typing import Any

from producers.kernel.nccl_rows import CallRow, CommEvent, CommFunction
from producers.kernel.rdma_decode import HolderCounters
from streams.contract.calls import Op

ZEROS = {
    name: 0
    for name in HolderCounters.__annotations__
    if name not in ("pid", "cgroup_id", "device", "comm", "bytes_sent", "packets_sent")
}


def counters(pid: int, device: str = "rxe0", cgroup_id: int = 7, **values: int | None) -> HolderCounters:
    fields: dict[str, Any] = ZEROS | {"bytes_sent": None, "packets_sent": None} | values
    return HolderCounters(pid=pid, cgroup_id=cgroup_id, device=device, comm=f"p{pid}", **fields)


def call(tick: int, pid: int = 1, comm_ptr: int = 0xA0, **values: Any) -> CallRow:
    at_ns = tick * 100_000_000 + 10_000_000
    fields: dict[str, Any] = {
        "cgroup_id": 7, "op": Op.ALL_REDUCE, "dtype": 7, "count": 1024, "calls": 1, "failed": 0,
        "first_seq": 1, "last_seq": 1, "first_ns": at_ns, "last_ns": at_ns,
    } | values  # fmt: skip
    return CallRow(tick=tick, pid=pid, comm_ptr=comm_ptr, **fields)


def event(function: CommFunction, at_tick: int, pid: int = 1, comm_ptr: int = 0xA0, **values: Any) -> CommEvent:
    at_ns = at_tick * 100_000_000 + 5_000_000
    fields: dict[str, Any] = {
        "cgroup_id": 7, "parent_ptr": None, "rank": None, "nranks": None, "color": None, "order_key": None,
        "unique_id_hash": None, "time_ns": at_ns, "returned_ns": at_ns, "result": 0,
    } | values  # fmt: skip
    return CommEvent(function=function, pid=pid, comm_ptr=comm_ptr, **fields)
