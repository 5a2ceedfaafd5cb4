"""A process is read from /proc as it is, and only the variables that identify its job are looked at."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from producers.identity.process import job_environment, read_process, read_start
from tests.producers.identity.procs import make_process


def test_a_process_of_this_machine_is_read() -> None:
    process = read_process(os.getpid())
    assert process is not None
    assert process.comm == Path("/proc/self/comm").read_text().rstrip("\n")
    assert process.cgroup == Path("/proc/self/cgroup").read_text()
    assert process.pid_namespace == Path("/proc/self/ns/pid").stat().st_ino


def test_only_the_variables_of_a_scheduler_are_seen() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        env={"SLURM_JOB_ID": "4749", "MASTER_PORT": "29500", "AWS_SECRET_ACCESS_KEY": "x"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    process = read_process(child.pid)
    child.communicate(timeout=10)
    assert process is not None
    assert process.environment == {"SLURM_JOB_ID": "4749", "MASTER_PORT": "29500"}
    assert read_process(child.pid) is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (b"", {}),
        (b"PATH=/bin\0", {}),
        (b"MASTER_ADDR=a=b\0MASTER_ADDR=c\0", {"MASTER_ADDR": "a=b"}),
        (b"MASTER_ADDR\0", {}),
        (b"SLURM_JOB_ID=" + b"9" * 1000, {"SLURM_JOB_ID": "9" * 256}),
        (b"XSLURM_JOB_ID=1\0", {}),
        (b"TORCHELASTIC_RUN_ID=\xff", {"TORCHELASTIC_RUN_ID": "\ufffd"}),
    ],
)
def test_an_environment_gives_the_first_of_each_shortened(environ: bytes, expected: dict[str, str]) -> None:
    assert job_environment(environ) == expected


def test_a_command_with_brackets_and_spaces_keeps_its_start_time(tmp_path: Path) -> None:
    make_process(tmp_path, 7, comm="a) (b 1 2", start_ticks=12345)
    assert read_start(7, tmp_path) == (12345, "a) (b 1 2")


@pytest.mark.parametrize("stat", ["", "7 (x) S 1", "garbage"])
def test_a_torn_stat_is_no_process(tmp_path: Path, stat: str) -> None:
    make_process(tmp_path, 7)
    (tmp_path / "7" / "stat").write_text(stat)
    assert read_process(7, tmp_path) is None


def test_a_pid_that_changes_hands_while_it_is_read_is_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_process(tmp_path, 7)
    starts = iter([(100, "old"), (200, "new")])
    monkeypatch.setattr("producers.identity.process.read_start", lambda *_: next(starts))
    assert read_process(7, tmp_path) is None


def test_a_process_without_readable_details_is_still_one(tmp_path: Path) -> None:
    make_process(tmp_path, 7, comm="x")
    (tmp_path / "7" / "cgroup").unlink()
    process = read_process(7, tmp_path)
    assert process is not None
    assert (process.comm, process.cgroup, process.pid_namespace, process.environment) == ("x", "", None, {})
