"""One bad counter file never stops the others, and says why it is absent."""

import os
from pathlib import Path

import pytest

from producers.ports.delta import ABSENT
from producers.ports.read import PARK_AFTER_FAILURES, FileReader, leading_code
from tests.producers.ports.trees import write


def read(reader: FileReader, count: int) -> list[int]:
    into = [0] * count
    reader.read(into)
    return into


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("N/A (no PMA)\n", "N/A (no PMA)"),
        ("", "empty"),
        ("\n", "empty"),
        ("abc\n", "not a number"),
        ("-1\n", "negative"),
        ("18446744073709551615\n", "all ones: not supported"),
    ],
)
def test_a_file_without_a_count_is_absent_with_its_reason_and_its_neighbour_is_read(
    tmp_path: Path, text: str, reason: str
) -> None:
    reader = FileReader([write(tmp_path / "bad", text), write(tmp_path / "good", "7\n")])
    assert read(reader, 2) == [ABSENT, 7]
    assert reader.reasons == {0: reason}
    assert reader.failures == {reason: 1}


def test_values_of_2_to_the_63_and_more_are_read(tmp_path: Path) -> None:
    reader = FileReader([write(tmp_path / "big", "18446744073709551614\n")])
    assert read(reader, 1) == [18446744073709551614]


def test_a_state_file_gives_the_kernels_number(tmp_path: Path) -> None:
    paths = [write(tmp_path / "state", "4: ACTIVE\n"), write(tmp_path / "odd", "ACTIVE\n")]
    assert read(FileReader(paths, parse=leading_code), 2) == [4, ABSENT]


def test_an_errno_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = write(tmp_path / "bad", "1\n"), write(tmp_path / "good", "7\n")
    reader = FileReader([bad, good])
    real = os.pread
    bad_inode = bad.stat().st_ino

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino == bad_inode:
            raise OSError(22, "Invalid argument")
        return real(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert read(reader, 2) == [ABSENT, 7]
    assert reader.reasons == {0: "EINVAL"}


def test_a_real_read_error_of_the_kernel_is_a_reason_too(tmp_path: Path) -> None:
    reader = FileReader([tmp_path, write(tmp_path / "good", "7\n")])  # a folder opens and answers EISDIR
    assert read(reader, 2) == [ABSENT, 7]
    assert reader.reasons == {0: "EISDIR"}


def test_a_file_that_is_not_there_is_absent_until_it_appears(tmp_path: Path) -> None:
    reader = FileReader([tmp_path / "late"])
    assert read(reader, 1) == [ABSENT]
    assert reader.reasons == {0: "ENOENT"}
    write(tmp_path / "late", "3\n")
    reader.revive()
    assert read(reader, 1) == [3]
    assert reader.reasons == {}


def test_a_file_that_recovers_before_it_is_parked_needs_no_revival(tmp_path: Path) -> None:
    path = write(tmp_path / "file", "x\n")
    reader = FileReader([path])
    assert read(reader, 1) == [ABSENT]
    path.write_text("5\n")
    assert read(reader, 1) == [5]
    assert reader.reasons == {}


def test_a_dead_file_is_given_up_and_costs_no_more_reads_until_revived(tmp_path: Path) -> None:
    path = write(tmp_path / "dead", "x\n")
    reader = FileReader([path])
    for _ in range(PARK_AFTER_FAILURES + 5):
        assert read(reader, 1) == [ABSENT]
    assert reader.failures == {"not a number": PARK_AFTER_FAILURES}
    path.write_text("5\n")
    assert read(reader, 1) == [ABSENT]
    reader.revive()
    assert read(reader, 1) == [5]


def test_closing_gives_every_descriptor_back(tmp_path: Path) -> None:
    before = open_files()
    reader = FileReader([write(tmp_path / str(n), "1\n") for n in range(20)])
    assert open_files() == before + 20
    reader.close()
    assert open_files() == before
