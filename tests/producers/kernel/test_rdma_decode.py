"""From the maps of the RDMA probes to counters per holder."""

import ctypes
import re

from producers.kernel.rdma_decode import (
    COUNTS,
    Device,
    HolderCounters,
    HolderKey,
    decode_holders,
    text,
)
from tests.paths import repo_root

RXE = Device(name="rxe0", counts_bytes=True)
MLX5 = Device(name="mlx5_0", counts_bytes=False)


class Key(ctypes.Structure):
    _fields_ = [
        ("cgroup_id", ctypes.c_uint64),
        ("device", ctypes.c_uint64),
        ("pid", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    ]


class Counts(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_uint64) for name in COUNTS), ("comm", ctypes.c_char * 16)]


def key(pid: int = 10, device: int = 1, cgroup_id: int = 74) -> Key:
    return Key(pid=pid, device=device, cgroup_id=cgroup_id)


def test_every_count_reaches_its_field() -> None:
    numbers = {name: 100 * (i + 1) for i, name in enumerate(COUNTS)}
    (record,) = decode_holders([(key(), Counts(**numbers, comm=b"python3"))], {1: RXE})
    assert record == HolderCounters(
        pid=10,
        cgroup_id=74,
        device="rxe0",
        comm="python3",
        qp_created=200,
        qp_destroyed=100,
        qp_live=100,
        qp_rts=300,
        cq_created=500,
        cq_destroyed=400,
        cq_live=100,
        mr_registered=700,
        mr_deregistered=600,
        mr_live=100,
        mr_live_bytes=100,
        mr_registered_bytes=900,
        packets_sent=1000,
        bytes_sent=1100,
    )


def test_bytes_that_nobody_can_see_are_none_and_not_zero() -> None:
    (record,) = decode_holders([(key(), Counts(qp_created=1))], {1: MLX5})
    assert (record.bytes_sent, record.packets_sent, record.qp_created) == (None, None, 1)


def test_a_device_that_came_back_at_another_address_is_one_device() -> None:
    entries = [(key(device=1), Counts(qp_created=2, comm=b"a")), (key(device=2), Counts(qp_created=3))]
    (record,) = decode_holders(entries, {1: RXE, 2: RXE})
    assert (record.device, record.comm, record.qp_created) == ("rxe0", "a", 5)


def test_one_process_in_two_cgroups_is_two_holders() -> None:
    entries = [(key(cgroup_id=75), Counts()), (key(cgroup_id=74), Counts())]
    assert [record.cgroup_id for record in decode_holders(entries, {1: RXE})] == [74, 75]


def test_a_device_without_a_name_is_shown_under_its_address() -> None:
    (record,) = decode_holders([(key(device=0xABC), Counts())], {})
    assert record.device == "unknown-abc"


def test_kernel_users_are_called_kernel() -> None:
    (record,) = decode_holders([(key(pid=0, cgroup_id=0), Counts())], {1: RXE})
    assert (record.pid, record.comm) == (0, "kernel")


def test_the_watchers_own_canary_is_left_out() -> None:
    assert decode_holders([(key(pid=10), Counts())], {1: RXE}, skip_pid=10) == []


def test_a_command_name_ends_at_its_first_zero() -> None:
    assert text(b"ib_write\0bw\xff") == "ib_write"
    assert text(b"\xff\0") == "�"


def test_the_c_structs_list_the_fields_that_python_reads() -> None:
    source = (repo_root() / "bpf" / "rdma_holders.h").read_text()
    counts = re.search(r"struct holder_counts \{(.*?)\n\};", source, re.DOTALL)
    holder = re.search(r"struct holder_key \{(.*?)\n\};", source, re.DOTALL)
    assert counts is not None
    assert holder is not None
    assert tuple(re.findall(r"u64 (\w+);", counts[1])) == COUNTS
    assert {*re.findall(r"u\d\d (\w+);", holder[1])} - {"pad"} == set(HolderKey.__annotations__)


def test_what_ended_is_copied_before_what_began() -> None:
    order = list(COUNTS)
    for ended, begun in (
        ("qp_destroyed", "qp_created"),
        ("cq_destroyed", "cq_created"),
        ("mr_deregistered", "mr_registered"),
        ("mr_deregistered_bytes", "mr_registered_bytes"),
    ):
        assert order.index(ended) < order.index(begun)
