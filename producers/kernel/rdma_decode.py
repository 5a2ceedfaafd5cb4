"""From the probes' raw maps to counters per process, cgroup and device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

KERNEL_PID = 0


class HolderKey(Protocol):
    """struct holder_key of bpf/rdma_holders.h."""

    cgroup_id: int
    device: int
    pid: int


class HolderCounts(Protocol):
    """struct holder_counts of bpf/rdma_holders.h: everything only grows."""

    qp_destroyed: int
    qp_created: int
    qp_rts: int
    cq_destroyed: int
    cq_created: int
    mr_deregistered: int
    mr_registered: int
    mr_deregistered_bytes: int
    mr_registered_bytes: int
    sent_packets: int
    sent_bytes: int
    comm: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An RDMA device: its name in sysfs and whether its driver lets us count each packet."""

    name: str
    counts_bytes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderCounters:
    """What one process in one cgroup did on one device since the probes were attached; `*_live` is as of now.

    Kernel users (management queue pairs, storage over RDMA) are pid 0 in cgroup 0. `bytes_sent` counts IP packets
    (headers, payload, padding, checksum; retransmissions and acknowledgements too), without Ethernet's 14 bytes a
    packet; None where no driver function shows them.
    """

    pid: int
    cgroup_id: int
    device: str
    comm: str
    qp_created: int
    qp_destroyed: int
    qp_live: int
    qp_rts: int
    mr_registered: int
    mr_deregistered: int
    mr_live: int
    mr_live_bytes: int
    mr_registered_bytes: int
    cq_created: int
    cq_destroyed: int
    cq_live: int
    packets_sent: int | None
    bytes_sent: int | None


@dataclass(slots=True)
class _Sums:
    comm: str = ""
    qp_created: int = 0
    qp_destroyed: int = 0
    qp_rts: int = 0
    cq_created: int = 0
    cq_destroyed: int = 0
    mr_registered: int = 0
    mr_deregistered: int = 0
    mr_registered_bytes: int = 0
    mr_deregistered_bytes: int = 0
    sent_packets: int = 0
    sent_bytes: int = 0
    counts_bytes: bool = False


COUNTS = tuple(name for name in HolderCounts.__annotations__ if name != "comm")


def decode_holders(
    entries: Iterable[tuple[HolderKey, HolderCounts]], devices: Mapping[int, Device], *, skip_pid: int = -1
) -> list[HolderCounters]:
    """One record per (pid, cgroup, device name), in that order, even when the device went away and came back."""
    sums: dict[tuple[int, int, str], _Sums] = {}
    for key, counts in entries:
        if key.pid == skip_pid:
            continue
        device = devices.get(key.device, Device(name=f"unknown-{key.device:x}", counts_bytes=False))
        total = sums.setdefault((key.pid, key.cgroup_id, device.name), _Sums())
        total.comm = total.comm or text(counts.comm)
        total.counts_bytes |= device.counts_bytes
        for name in COUNTS:
            setattr(total, name, getattr(total, name) + getattr(counts, name))
    return [_record(holder, sums[holder]) for holder in sorted(sums)]


def _record(holder: tuple[int, int, str], total: _Sums) -> HolderCounters:
    pid, cgroup_id, device = holder
    return HolderCounters(
        pid=pid,
        cgroup_id=cgroup_id,
        device=device,
        comm=total.comm if pid != KERNEL_PID else "kernel",
        qp_created=total.qp_created,
        qp_destroyed=total.qp_destroyed,
        qp_live=total.qp_created - total.qp_destroyed,
        qp_rts=total.qp_rts,
        mr_registered=total.mr_registered,
        mr_deregistered=total.mr_deregistered,
        mr_live=total.mr_registered - total.mr_deregistered,
        mr_live_bytes=total.mr_registered_bytes - total.mr_deregistered_bytes,
        mr_registered_bytes=total.mr_registered_bytes,
        cq_created=total.cq_created,
        cq_destroyed=total.cq_destroyed,
        cq_live=total.cq_created - total.cq_destroyed,
        packets_sent=total.sent_packets if total.counts_bytes else None,
        bytes_sent=total.sent_bytes if total.counts_bytes else None,
    )


def text(raw: bytes) -> str:
    """A C string as the kernel keeps it: up to the first zero, bytes that are no UTF-8 replaced."""
    return raw.partition(b"\0")[0].decode("utf-8", "replace")
