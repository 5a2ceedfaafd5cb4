"""Each NCCL function is probed once, in every release, by a program that exists."""

import re
from pathlib import Path

import pytest

from producers.kernel.nccl_probes import COMMUNICATORS, FALLBACKS, OPERATIONS, is_nccl, probe_points
from producers.kernel.nccl_rows import CommFunction
from streams.contract.calls import Op
from tests.paths import repo_root, shared

RELEASES = ("2.18.3", "2.21.5", "2.26.2", "2.28.9", "2.30.7", "2.32.3")


def exports(release: str) -> dict[str, int]:
    lines = shared("corpus", "nccl", f"nm-D_libnccl_{release}.txt").read_text().splitlines()
    return {
        name: int(address, 16)
        for address, kind, name in (line.split() for line in lines if line[:1] != "#")
        if kind in "TW"
    }


@pytest.mark.parametrize("release", RELEASES)
def test_no_address_is_probed_twice_though_every_function_has_two_names(release: str) -> None:
    offsets = exports(release)

    points = probe_points(offsets)

    assert is_nccl(offsets)
    assert len({point.offset for point in points}) == len(points)
    assert {point.symbol for point in points} <= {name for name in offsets if name.startswith("nccl")}


@pytest.mark.parametrize(
    ("release", "operations", "communicators"),
    [("2.18.3", 7, 7), ("2.21.5", 7, 7), ("2.26.2", 7, 8), ("2.28.9", 10, 9), ("2.30.7", 13, 10), ("2.32.3", 21, 10)],
)
def test_every_function_of_a_release_that_moves_data_is_probed(
    release: str, operations: int, communicators: int
) -> None:
    programs = [point.program for point in probe_points(exports(release))]

    assert sum(program in OPERATIONS.values() for program in programs) == operations
    assert sum(program in COMMUNICATORS.values() for program in programs) == communicators


def test_bcast_is_left_to_broadcast_which_it_calls() -> None:
    both = {"ncclBcast": 10, "pncclBcast": 10, "ncclBroadcast": 20, "pncclBroadcast": 20}

    assert [point.symbol for point in probe_points(both)] == ["ncclBroadcast"]
    assert [point.symbol for point in probe_points({"ncclBcast": 10, "pncclBcast": 10})] == ["ncclBcast"]


def test_a_library_that_exports_only_the_strong_names_is_probed_by_them() -> None:
    assert [(point.symbol, point.program) for point in probe_points({"pncclSend": 64})] == [("pncclSend", "send")]


def source(name: str) -> str:
    return Path(repo_root() / "bpf" / name).read_text()


def test_every_operation_has_its_program_and_the_number_of_the_contract() -> None:
    table = {name: int(op) for name, op in re.findall(r"^OPERATION\((\w+),\s+(\d+),", source("nccl_calls.c"), re.M)}

    assert set(table) == set(OPERATIONS.values()) | {program for program, _ in FALLBACKS.values()}
    assert {Op(number) for number in table.values()} == set(Op) - {Op.UNKNOWN}
    assert table == {program: Op[program.upper()].value for program in OPERATIONS.values()} | {"bcast": Op.BROADCAST}


def test_every_communicator_function_has_its_programs_and_its_number() -> None:
    text = source("nccl_comms.c")
    body = re.search(r"enum comm_function \{(.*?)\};", text, re.S)
    assert body is not None
    names = re.findall(r"^\s+(\w+)(?: = 1)?,$", body.group(1), re.M)

    assert names == [function.name for function in CommFunction if function is not CommFunction.PROCESS_EXIT]
    for program in COMMUNICATORS.values():
        assert f"int enter_{program}(" in text
        assert f"int leave_{program}(" in text
