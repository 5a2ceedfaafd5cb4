"""The parts that several records share: where a record comes from, when, and what could not be seen."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Source(StrEnum):
    """Who saw it. What is simulated never pages anyone and is never charged."""

    UNKNOWN = "unknown"
    KERNEL = "kernel"
    INSPECTOR = "inspector"
    SIMULATED = "simulated"


class Rung(StrEnum):
    """The best kind of evidence behind a number, best first after `unknown`."""

    UNKNOWN = "unknown"
    PROCESS_BYTES = "process_bytes"
    PROCESS_COUNTERS = "process_counters"
    KERNEL_PROBES = "kernel_probes"
    PORT_TOTALS = "port_totals"

    @classmethod
    def _missing_(cls, value: object) -> Rung:  # noqa: ARG003
        """What a newer writer says, as Avro reads it: its default."""
        return cls.UNKNOWN


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not seen, and why: never a zero."""

    source: str  # Which part looked: rdma, nccl, ports, ethtool, identity
    what: str  # What is missing: a probe, a counter, a device
    reason: str  # One line a person can act on


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """The producer's clocks at the record's first tick."""

    epoch_started_us: int  # Wall clock when this agent epoch began
    monotonic_us: int  # Monotonic clock at the first tick
    offset_us: int | None = None  # Offset from true time, where a time service tells
    max_error_us: int | None = None  # Bound of that offset's error


class WatcherClock(msgspec.Struct, frozen=True, kw_only=True):
    """The pod watcher's second hand, written to every input partition: silence becomes a fact in the log."""

    watcher_epoch: str  # One life of a watcher process, compared for equality only
    seq: int  # Counts from 1 in each watcher epoch
    tick: int  # The watcher's own tick when it wrote this


class DeviceAbout(msgspec.Struct, frozen=True, kw_only=True):
    """One NIC's versions and limits, told once per agent epoch."""

    device: str
    driver: str | None = None
    firmware: str | None = None
    board: str | None = None
    limits: dict[str, int] = {}  # max_qp, max_mr, max_cq, ... as the device states them


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What runs on the node, told once per agent epoch."""

    agent: str
    kernel: str
    libnccl: list[str] = []
    devices: list[DeviceAbout] = []
    settings: dict[str, str] = {}
