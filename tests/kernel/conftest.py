"""What the kernel tests need: headers for bcc, real NCCL libraries, and processes that call them."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from producers.kernel.loader import LoaderUnavailable, load
from producers.kernel.nccl import NcclCalls
from producers.kernel.nccl_rows import CallRow
from tests.paths import cache_dir, need, repo_root

DEADLINE_S = 20
CALLER = Path(__file__).parent / "nccl_caller.py"


def libc_path() -> Path:
    """The C library of this process."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return Path(next(line.split()[5] for line in maps if line.endswith("/libc.so.6")))


@pytest.fixture(scope="session")
def bpf() -> None:
    """BPF programs compile and load here, or the test says what is missing."""
    need(os.geteuid() == 0, "BPF needs root", "run the tests as root")
    headers = subprocess.run([repo_root() / "infra/dev/host-headers"], capture_output=True, text=True, check=False)
    need(headers.returncode == 0, headers.stderr.strip() or "no kernel headers", "run infra/dev/host-headers")
    try:
        load("#include <uapi/linux/ptrace.h>\nint nothing(struct pt_regs *ctx) { return 0; }").close()
    except LoaderUnavailable as error:
        need(False, str(error), "install python3-bpfcc and linux-headers-amd64")


@pytest.fixture(scope="session")
def nccl_library() -> Callable[[str], Path]:
    """The real libnccl of a release, from PyPI, kept in the cache folder."""

    def fetch(release: str) -> Path:
        folder = cache_dir() / "nccl" / release
        if not (folder / ".ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            done = subprocess.run(
                [*command, "--target", str(folder), f"nvidia-nccl-cu12=={release}"],
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            need(done.returncode == 0, f"libnccl {release} cannot be fetched: {done.stderr[-200:]}", "reach PyPI once")
            (folder / ".ready").touch()
        return folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2"

    return fetch


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with NCCL's names whose calls succeed, built here."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    need(compiler, "no C compiler", "install gcc and libc6-dev")
    path = tmp_path_factory.mktemp("fake") / "libnccl.so.2"
    source = Path(__file__).parent / "fake_nccl.c"
    subprocess.run([str(compiler), "-shared", "-fPIC", "-O1", "-o", str(path), str(source)], check=True)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    results: list[int]  # the distinct return values
    slots: list[int | None]


class Caller:
    """A process that calls NCCL as it is told."""

    def __init__(self, library: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(CALLER), str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        self.blank: int = self._read()["blank"]

    def call(self, function: str, *args: str, times: int = 1, threads: int = 0) -> Answer:
        """Run the calls and wait for them; each of `threads` makes all of them."""
        self.begin(function, *args, times=times, threads=threads)
        return self.end()

    def begin(self, function: str, *args: str, times: int, threads: int = 0) -> None:
        assert self._process.stdin
        order = {"call": function, "args": args, "times": times, "threads": threads}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def end(self) -> Answer:
        answer = self._read()
        return Answer(results=answer["results"], slots=answer["slots"])

    def close(self) -> None:
        self._process.communicate(timeout=DEADLINE_S)

    def _read(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the caller died with {self._process.wait(DEADLINE_S)}"
        return json.loads(line)


@pytest.fixture
def caller() -> Iterator[Callable[[Path], Caller]]:
    """Starts callers and ends them with the test."""
    started: list[Caller] = []

    def start(library: Path) -> Caller:
        started.append(Caller(library))
        return started[-1]

    yield start
    for process in started:
        process.close()


class Samples:
    """Rows gathered sample by sample until a number of calls is reached."""

    def __init__(self, probes: NcclCalls) -> None:
        self.probes = probes
        self.rows: list[CallRow] = []

    def of(self, pid: int) -> list[CallRow]:
        return [row for row in self.rows if row.pid == pid]

    def until(self, pid: int, *, calls: int, pause_s: float = 0.1) -> list[CallRow]:
        """Sample until this process's calls have all come, then on for what should not."""
        deadline = time.monotonic() + DEADLINE_S
        while sum(row.calls for row in self.of(pid)) < calls and time.monotonic() < deadline:
            self.rows += self.probes.sample()
            time.sleep(pause_s)
        return self.settle(pid)

    def settle(self, pid: int) -> list[CallRow]:
        """Sample until every tick that has begun so far is over."""
        now_tick = time.time_ns() // 100_000_000
        while self.probes.complete_through_tick < now_tick:
            time.sleep(0.02)
            self.rows += self.probes.sample()
        return self.of(pid)


@pytest.fixture(scope="session")
def probes(bpf: None) -> Iterator[NcclCalls]:
    """One set of probes for all tests: the kernel takes seconds to detach them."""
    started = NcclCalls(bpf_dir=repo_root() / "bpf")
    yield started
    started.close()


@pytest.fixture
def samples(probes: NcclCalls) -> Samples:
    probes.sample()
    probes.events()
    return Samples(probes)
