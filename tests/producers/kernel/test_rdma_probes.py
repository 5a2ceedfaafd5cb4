"""What the RDMA probes say when the kernel, the loader or a probe says no; a fake stands for the loaded program."""

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from producers.kernel.loader import LoaderUnavailable, ProbeUnavailable
from producers.kernel.rdma import (
    CORE_CONSTANTS,
    CORE_MEMBERS,
    FORGET_AFTER_SAMPLES,
    RDMA_DRIVER_RXE,
    RXE_MEMBERS,
    Gap,
    RdmaObjects,
)
from tests.paths import repo_root
from tests.producers.kernel.test_rdma_btf import Builder
from tests.producers.kernel.test_rdma_decode import Counts, Key

CORE = ["rdma_restrack_add", "rdma_restrack_del", "ib_modify_qp", "ib_modify_qp_with_udata"]
RXE = [*CORE, "rdma_restrack_commit_del", "rxe_xmit_packet"]
OBJECTS_WHAT = "queue pairs, completion queues, memory regions"


class Facts(ctypes.Structure):
    _fields_ = [("driver", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("name", ctypes.c_char * 64)]


class FakeTable:
    def __init__(self) -> None:
        self.entries: list[tuple[Any, Any]] = []

    def items(self) -> list[tuple[Any, Any]]:
        return list(self.entries)

    def delete(self, keys: Sequence[Any]) -> None:
        gone = [bytes(key) for key in keys]
        self.entries = [(key, value) for key, value in self.entries if bytes(key) not in gone]


class FakeProgram:
    def __init__(self, refused: str = "") -> None:
        self.attached: list[tuple[str, str]] = []
        self.refused = refused
        self.closed = False
        self.tables = {name: FakeTable() for name in ("holders", "devices", "losses")}

    def attach_kprobe(self, symbol: str, function: str) -> int:
        if symbol == self.refused:
            raise ProbeUnavailable(f"{symbol}: Operation not permitted")
        self.attached.append((symbol, function))
        return len(self.attached)

    attach_kretprobe = attach_kprobe

    def detach(self, handle: int) -> None:
        self.attached.pop(handle - 1)

    def table(self, name: str) -> FakeTable:
        return self.tables[name]

    def close(self) -> None:
        self.closed = True


class Lab:
    """A kernel's files in a folder, and RdmaObjects on them with a fake program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = FakeProgram()
        self.loads: list[tuple[str, Sequence[str]]] = []
        (folder / "proc").mkdir()
        (folder / "btf").mkdir()
        builder = Builder()
        members = [*CORE_MEMBERS.values(), *RXE_MEMBERS.values(), ("ib_device", "ops"), ("ib_device_ops", "driver_id")]
        for name in dict.fromkeys(struct for struct, _ in members):
            builder.struct(name, {member: 64 for struct, member in members if struct == name})
        builder.enum("rdma_restrack_type", {constant: 2 for _, constant in CORE_CONSTANTS.values()})
        (folder / "btf" / "vmlinux").write_bytes(builder.blob())

    def load(self, source: str, *, cflags: Sequence[str]) -> FakeProgram:
        self.loads.append((source, cflags))
        return self.program

    def open(self, symbols: Sequence[str], load: Any = None) -> RdmaObjects:
        kallsyms = self.folder / "kallsyms"
        kallsyms.write_text("".join(f"ffffffffc0000000 t {symbol}\t[m]\n" for symbol in symbols))
        return RdmaObjects(
            bpf_dir=repo_root() / "bpf",
            kallsyms=kallsyms,
            btf_dir=self.folder / "btf",
            proc=self.folder / "proc",
            load=load or self.load,
        )


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_all_probes_attach_and_the_ends_come_first(lab: Lab) -> None:
    probes = lab.open(RXE)
    assert probes.gaps == []
    assert lab.program.attached == [
        ("rdma_restrack_del", "on_object_end"),
        ("rdma_restrack_commit_del", "on_object_end_committed"),
        ("rdma_restrack_add", "on_object_begin"),
        ("ib_modify_qp_with_udata", "on_modify_qp"),
        ("ib_modify_qp_with_udata", "on_modified_qp"),
        ("ib_modify_qp", "on_modify_qp"),
        ("ib_modify_qp", "on_modified_qp"),
        ("rxe_xmit_packet", "on_rxe_packet"),
    ]


def test_every_macro_that_the_sources_use_is_given(lab: Lab) -> None:
    lab.open(RXE)
    ((source, flags),) = lab.loads
    given = {flag[2:].split("=")[0] for flag in flags if flag.startswith("-D")}
    constants = "QP_STATE_MASK QP_STATE_RTS IMPLICIT_BYTES LOST_OBJECTS_FULL LOST_HOLDERS_FULL LOST_DEVICES_FULL"
    own = {*constants.split(), "SEEN_END_WITHOUT_BEGIN", "LOSSES", "READ", "ABI"}
    bcc = {"BPF_HASH", "BPF_ARRAY", "PT_REGS_PARM1", "PT_REGS_PARM2", "PT_REGS_PARM3", "PT_REGS_RC"}
    code = "\n".join(line.partition("//")[0] for line in source.splitlines())
    used = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", code))
    assert used - own - bcc == given


def test_without_the_rdma_core_everything_is_a_named_gap(lab: Lab) -> None:
    probes = lab.open([])
    assert probes.gaps == [
        Gap(source="rdma_objects", what=OBJECTS_WHAT, reason="the kernel has no function rdma_restrack_del"),
        Gap(source="rdma_bytes", what="bytes sent per process", reason="needs the objects' probes"),
    ]
    assert (probes.sample(), probes.lost, probes.ended_without_beginning) == ([], 0, 0)
    assert probes.self_check("rxe0") is not None
    probes.close()


def test_without_rxe_only_the_bytes_are_a_gap(lab: Lab) -> None:
    probes = lab.open(CORE)
    assert probes.gaps == [
        Gap(
            source="rdma_bytes",
            what="bytes sent per process",
            reason="the kernel has no function rxe_xmit_packet",
        )
    ]
    assert "on_rxe_packet" not in lab.loads[0][0]


def test_a_kernel_without_btf_is_a_gap(lab: Lab) -> None:
    (lab.folder / "btf" / "vmlinux").unlink()
    assert lab.open(RXE).gaps[0].reason.startswith("no BTF")


def test_a_loader_that_cannot_load_is_a_gap(lab: Lab) -> None:
    def refuse(_source: str, *, cflags: Sequence[str]) -> FakeProgram:
        raise LoaderUnavailable("BPF needs root")

    assert [gap.reason for gap in lab.open(RXE, refuse).gaps] == ["BPF needs root", "needs the objects' probes"]


@pytest.mark.parametrize(
    ("refused", "what"),
    [
        ("rxe_xmit_packet", ["bytes sent per process"]),
        ("ib_modify_qp", ["queue pairs ready to send (ib_modify_qp)"]),
        ("rdma_restrack_add", [OBJECTS_WHAT, "bytes sent per process"]),
    ],
)
def test_a_probe_that_is_refused_is_a_gap_and_the_others_stay(lab: Lab, refused: str, what: list[str]) -> None:
    lab.program.refused = refused
    probes = lab.open(RXE)
    assert [gap.what for gap in probes.gaps] == what
    assert lab.program.closed == (refused == "rdma_restrack_add")


def test_bytes_are_none_when_their_probe_was_refused(lab: Lab) -> None:
    lab.program.refused = "rxe_xmit_packet"
    probes = lab.open(RXE)
    add_holder(lab.program, Counts(qp_created=1))
    (record,) = probes.sample()
    assert (record.device, record.bytes_sent) == ("rxe0", None)


def test_losses_with_lost_data_are_told_from_objects_older_than_the_probes(lab: Lab) -> None:
    probes = lab.open(RXE)
    lab.program.tables["losses"].entries = [(ctypes.c_int(i), ctypes.c_uint64(10**i)) for i in range(4)]
    assert (probes.lost, probes.ended_without_beginning) == (111, 1000)


@pytest.mark.parametrize(
    ("alive", "counts", "remains"),
    [(False, {}, False), (True, {}, True), (False, {"qp_created": 1}, True), (False, {"mr_registered": 1}, True)],
)
def test_only_the_dead_that_hold_nothing_are_forgotten(
    lab: Lab, alive: bool, counts: dict[str, int], remains: bool
) -> None:
    probes = lab.open(RXE)
    add_holder(lab.program, Counts(**counts, sent_bytes=5))
    if alive:
        (lab.folder / "proc" / "10").mkdir()
    for _ in range(FORGET_AFTER_SAMPLES + 1):
        assert len(probes.sample()) == 1
    assert bool(probes.sample()) is remains


def add_holder(program: FakeProgram, counts: Counts) -> None:
    program.tables["holders"].entries = [(Key(pid=10, device=7, cgroup_id=74), counts)]
    facts = Facts(driver=RDMA_DRIVER_RXE, name=b"rxe0")
    program.tables["devices"].entries = [(ctypes.c_uint64(7), facts)]
