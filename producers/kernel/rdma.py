"""RDMA objects and bytes per process, cgroup and device, counted in the kernel and read once per tick."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from producers.kernel import loader
from producers.kernel.rdma_btf import Btf, LayoutUnknown, read_btf
from producers.kernel.rdma_canary import CanaryUnavailable, make_and_destroy
from producers.kernel.rdma_decode import Device, HolderCounters, decode_holders, text
from producers.kernel.rdma_symbols import SymbolUnavailable, probe_symbol, read_functions

OBJECTS, BYTES = "rdma_objects", "rdma_bytes"
# The largest queue-pair table of a ConnectX is 262,144; one entry takes about 100 bytes, allocated at load.
MAX_OBJECTS = 262_144
MAX_HOLDERS = 8_192
# A dead process without live objects cannot change any more: its counters are dropped after this many samples.
FORGET_AFTER_SAMPLES = 600

# What BTF has to say: macro in the C source -> (struct, member), (enum, constant) for the KIND_ and DRIVER_ ones.
CORE_MEMBERS = {
    "TRACKED_KIND": ("rdma_restrack_entry", "type"),
    "TRACKED_USER": ("rdma_restrack_entry", "user"),
    "TRACKED_VALID": ("rdma_restrack_entry", "valid"),
    "QP_TRACKED": ("ib_qp", "res"),
    "QP_DEVICE": ("ib_qp", "device"),
    "CQ_TRACKED": ("ib_cq", "res"),
    "CQ_DEVICE": ("ib_cq", "device"),
    "MR_TRACKED": ("ib_mr", "res"),
    "MR_DEVICE": ("ib_mr", "device"),
    "MR_LENGTH": ("ib_mr", "length"),
    "DEVICE_NAME": ("ib_device", "name"),
    "ATTRIBUTES_STATE": ("ib_qp_attr", "qp_state"),
}
CORE_CONSTANTS = {
    "KIND_QP": ("rdma_restrack_type", "RDMA_RESTRACK_QP"),
    "KIND_CQ": ("rdma_restrack_type", "RDMA_RESTRACK_CQ"),
    "KIND_MR": ("rdma_restrack_type", "RDMA_RESTRACK_MR"),
}
RXE_MEMBERS = {"RXE_QP_IBQP": ("rxe_qp", "ibqp"), "SKB_LEN": ("sk_buff", "len")}
RDMA_DRIVER_RXE = 14  # include/uapi/rdma/ib_user_ioctl_verbs.h, an ABI

OBJECT_BEGIN, OBJECT_END, RXE_PACKET = "rdma_restrack_add", "rdma_restrack_del", "rxe_xmit_packet"
OBJECT_END_COMMITTED = "rdma_restrack_commit_del"  # only on kernels that end objects in two steps
MODIFY = ("ib_modify_qp_with_udata", "ib_modify_qp")  # user space's way, and the kernel's own

LOSS_NAMES = ("objects full", "holders full", "devices full", "ended without a beginning")
LOSSES_WITH_DATA_LOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that cannot be seen here: never shown as zero."""

    source: str
    what: str
    reason: str


class Table(Protocol):
    """The part of a BPF map that is used here."""

    def items(self) -> list[tuple[Any, Any]]: ...  # noqa: D102
    def delete(self, keys: Sequence[Any]) -> None: ...  # noqa: D102


class Program(Protocol):
    """The part of a loaded BPF program that is used here."""

    def attach_kprobe(self, symbol: str, function: str) -> int: ...  # noqa: D102
    def attach_kretprobe(self, symbol: str, function: str) -> int: ...  # noqa: D102
    def detach(self, handle: int) -> None: ...  # noqa: D102
    def table(self, name: str) -> Any: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class RdmaObjects:
    """Kernel probes on the RDMA core and on drivers that send packets in software; what they cannot see is in `gaps`.

    Objects that exist before this is made are not counted, and their end is only counted in `ended_without_beginning`.
    """

    def __init__(
        self,
        *,
        bpf_dir: Path,
        kallsyms: Path = Path("/proc/kallsyms"),
        btf_dir: Path = Path("/sys/kernel/btf"),
        proc: Path = Path("/proc"),
        max_objects: int = MAX_OBJECTS,
        max_holders: int = MAX_HOLDERS,
        load: Callable[..., Program] = loader.load,
    ) -> None:
        self._gaps: list[Gap] = []
        self._program: Program | None = None
        self._proc = proc
        self._devices: dict[int, Device] = {}
        self._unchanged: dict[bytes, tuple[bytes, int]] = {}
        self._counts_packets = False
        functions = read_functions([OBJECT_BEGIN, OBJECT_END, OBJECT_END_COMMITTED, RXE_PACKET, *MODIFY], kallsyms)
        try:
            ends = {probe_symbol(functions, OBJECT_END): "on_object_end"}
            if functions[OBJECT_END_COMMITTED]:
                ends[probe_symbol(functions, OBJECT_END_COMMITTED)] = "on_object_end_committed"
            begin = probe_symbol(functions, OBJECT_BEGIN)
            flags = layout_flags(read_btf("ib_core", btf_dir), CORE_MEMBERS, CORE_CONSTANTS)
        except (SymbolUnavailable, LayoutUnknown) as error:
            self._miss(OBJECTS, "queue pairs, completion queues, memory regions", str(error))
            self._miss(BYTES, "bytes sent per process", "needs the objects' probes")
            return
        sources, rxe_flags = self._with_bytes(bpf_dir, functions, btf_dir)
        try:
            self._program = load(
                "\n".join(source.read_text() for source in sources),
                cflags=[
                    f"-I{bpf_dir}",
                    f"-DMAX_OBJECTS={max_objects}",
                    f"-DMAX_HOLDERS={max_holders}",
                    *flags,
                    *rxe_flags,
                ],
            )
        except loader.LoaderUnavailable as error:
            self._miss(OBJECTS, "queue pairs, completion queues, memory regions", str(error))
            self._miss(BYTES, "bytes sent per process", "needs the objects' probes")
            return
        self._attach(functions, begin, ends)

    @property
    def gaps(self) -> list[Gap]:
        """What is not seen and why, complete after construction."""
        return list(self._gaps)

    @property
    def lost(self) -> int:
        """Events that a full map swallowed since the start: over zero, the counts are too low."""
        return sum(self._losses()[:LOSSES_WITH_DATA_LOST])

    @property
    def ended_without_beginning(self) -> int:
        """Objects whose end was seen but not their beginning: they are older than the probes."""
        return self._losses()[LOSSES_WITH_DATA_LOST]

    def sample(self) -> list[HolderCounters]:
        """Cumulative counters per (pid, cgroup, device), by one batched read; empty when the probes are a gap.

        A process that is gone and holds nothing disappears after `FORGET_AFTER_SAMPLES` unchanged samples: a caller
        that keeps earlier values forgets those of keys that are not here.
        """
        if self._program is None:
            return []
        entries = self._program.table("holders").items()
        if any(key.device not in self._devices for key, _ in entries):
            self._read_devices()
        self._forget_dead(entries)
        return decode_holders(entries, self._devices, skip_pid=os.getpid())

    def self_check(self, device: str) -> Gap | None:
        """Create and destroy one canary of each object on a device and require the probes' count of it.

        None when the count is exact; a gap when it is not, or when no canary can be made. (A probe was once seen to
        attach without an error and to deliver nothing.)
        """
        if self._program is None:
            return Gap(source=OBJECTS, what=f"self check on {device}", reason="no probes are attached")
        before = self._own_counts(device)
        try:
            make_and_destroy(device)
        except CanaryUnavailable as error:
            return Gap(source=OBJECTS, what=f"self check on {device}", reason=str(error))
        after = self._own_counts(device)
        grown = tuple(now - then for now, then in zip(after, before, strict=True))
        if grown == (1,) * len(grown):
            return None
        reason = (
            f"the probes counted {grown} of one queue pair, completion queue and memory region, created and destroyed"
        )
        return Gap(source=OBJECTS, what=f"counts on {device}", reason=reason)

    def close(self) -> None:
        """Detach all probes; calling it again does nothing."""
        if self._program is not None:
            self._program.close()
            self._program = None

    def _with_bytes(
        self, bpf_dir: Path, functions: dict[str, list[str]], btf_dir: Path
    ) -> tuple[list[Path], list[str]]:
        sources = [bpf_dir / "rdma_objects.c"]
        try:
            probe_symbol(functions, RXE_PACKET)
            flags = layout_flags(read_btf("rdma_rxe", btf_dir), RXE_MEMBERS, {})
        except (SymbolUnavailable, LayoutUnknown) as error:
            self._miss(BYTES, "bytes sent per process", str(error))
            return sources, []
        self._counts_packets = True
        return [*sources, bpf_dir / "rdma_bytes.c"], flags

    def _attach(self, functions: dict[str, list[str]], begin: str, ends: dict[str, str]) -> None:
        program = self._program
        assert program is not None  # noqa: S101
        try:
            # The ends first: an object that ends while we attach then began too early, and does not live for ever.
            for end, function in ends.items():
                program.attach_kprobe(end, function)
            program.attach_kprobe(begin, "on_object_begin")
        except loader.ProbeUnavailable as error:
            self._miss(OBJECTS, "queue pairs, completion queues, memory regions", error.reason)
            self._miss(BYTES, "bytes sent per process", "needs the objects' probes")
            self.close()
            return
        for name in MODIFY:
            self._attach_modify(program, functions, name)
        if self._counts_packets:
            try:
                program.attach_kprobe(probe_symbol(functions, RXE_PACKET), "on_rxe_packet")
            except loader.ProbeUnavailable as error:
                self._counts_packets = False
                self._miss(BYTES, "bytes sent per process", error.reason)

    def _attach_modify(self, program: Program, functions: dict[str, list[str]], name: str) -> None:
        try:
            symbol = probe_symbol(functions, name)
            handle = program.attach_kprobe(symbol, "on_modify_qp")
            try:
                program.attach_kretprobe(symbol, "on_modified_qp")
            except loader.ProbeUnavailable:
                program.detach(handle)
                raise
        except (SymbolUnavailable, loader.ProbeUnavailable) as error:
            self._miss(OBJECTS, f"queue pairs ready to send ({name})", str(error))

    def _miss(self, source: str, what: str, reason: str) -> None:
        self._gaps.append(Gap(source=source, what=what, reason=reason))

    def _losses(self) -> list[int]:
        if self._program is None:
            return [0] * len(LOSS_NAMES)
        return [int(value.value) for _, value in self._program.table("losses").items()]

    def _read_devices(self) -> None:
        assert self._program is not None  # noqa: S101
        self._devices = {
            int(key.value): Device(
                name=text(bytes(facts.name)),
                counts_bytes=self._counts_packets and facts.driver == RDMA_DRIVER_RXE,
            )
            for key, facts in self._program.table("devices").items()
        }

    def _own_counts(self, device: str) -> tuple[int, ...]:
        assert self._program is not None  # noqa: S101
        entries = self._program.table("holders").items()
        self._read_devices()
        for mine in decode_holders(entries, self._devices):
            if mine.pid == os.getpid() and mine.device == device:
                return (
                    mine.qp_created,
                    mine.qp_destroyed,
                    mine.cq_created,
                    mine.cq_destroyed,
                    mine.mr_registered,
                    mine.mr_deregistered,
                )
        return (0,) * 6

    def _forget_dead(self, entries: list[tuple[Any, Any]]) -> None:
        unchanged: dict[bytes, tuple[bytes, int]] = {}
        dead: list[Any] = []
        for key, counts in entries:
            raw_key, raw = bytes(key), bytes(counts)
            earlier, samples = self._unchanged.get(raw_key, (b"", 0))
            samples = samples + 1 if earlier == raw else 0
            if samples >= FORGET_AFTER_SAMPLES and holds_nothing(counts) and not (self._proc / str(key.pid)).exists():
                dead.append(key)
            else:
                unchanged[raw_key] = (raw, samples)
        self._unchanged = unchanged
        if dead and self._program is not None:
            self._program.table("holders").delete(dead)


def layout_flags(btf: Btf, members: dict[str, tuple[str, str]], constants: dict[str, tuple[str, str]]) -> list[str]:
    """Compiler flags that give the C source its offsets and constants; raises LayoutUnknown for what is missing."""
    offsets = {macro: btf.member_bytes(*place) for macro, place in members.items()}
    if "DEVICE_NAME" in members:
        offsets["DEVICE_DRIVER"] = btf.member_bytes("ib_device", "ops") + btf.member_bytes("ib_device_ops", "driver_id")
    offsets |= {macro: btf.enum_value(*place) for macro, place in constants.items()}
    return [f"-D{macro}={value}" for macro, value in offsets.items()]


def holds_nothing(counts: Any) -> bool:
    """True for a holder all of whose objects have ended."""
    return bool(
        counts.qp_created == counts.qp_destroyed
        and counts.cq_created == counts.cq_destroyed
        and counts.mr_registered == counts.mr_deregistered
    )
