"""What /proc says of one process."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# The only variables we look at: they identify a job to its scheduler. Everything else is the tenant's business.
JOB_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
MAX_ENVIRON_BYTES = 256 * 1024
MAX_VALUE_CHARACTERS = 256
_START_FIELD = 19  # start time is field 22 of stat; the fields after "(comm)" begin with number 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process: its start (clock ticks since boot) tells it from a later one with the same pid."""

    pid: int
    start_ticks: int
    comm: str
    cgroup: str
    pid_namespace: int | None
    environment: Mapping[str, str]


def read_process(pid: int, proc: Path = Path("/proc")) -> Process | None:
    """The process `pid` now; None if there is none, or if another took its number while we read."""
    folder = proc / str(pid)
    before = read_start(pid, proc)
    if before is None:
        return None
    start_ticks, comm = before
    process = Process(
        pid=pid,
        start_ticks=start_ticks,
        comm=comm,
        cgroup=_text(folder / "cgroup"),
        pid_namespace=_pid_namespace(folder / "ns" / "pid"),
        environment=job_environment(_bytes(folder / "environ", MAX_ENVIRON_BYTES)),
    )
    return process if read_start(pid, proc) == before else None


def read_start(pid: int, proc: Path = Path("/proc")) -> tuple[int, str] | None:
    """Start time and comm of `pid`; a comm may hold spaces and brackets."""
    head, bracket, tail = _text(proc / str(pid) / "stat").rpartition(")")
    fields = tail.split()
    if not bracket or len(fields) <= _START_FIELD:
        return None
    return int(fields[_START_FIELD]), head.partition("(")[2]


def job_environment(environ: bytes) -> dict[str, str]:
    """The variables of `JOB_VARIABLES` in an environ file, the first of each, shortened."""
    found: dict[str, str] = {}
    for entry in environ.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        key = name.decode(errors="replace")
        if equals and key in JOB_VARIABLES:
            found.setdefault(key, value.decode(errors="replace")[:MAX_VALUE_CHARACTERS])
    return found


def _pid_namespace(link: Path) -> int | None:
    """The inode in "pid:[4026531836]"."""
    try:
        text = str(link.readlink())
    except OSError:
        return None
    number = text.partition("[")[2].rstrip("]")
    return int(number) if number.isdecimal() else None


def _text(path: Path) -> str:
    return _bytes(path, MAX_ENVIRON_BYTES).decode(errors="replace")


def _bytes(path: Path, limit: int) -> bytes:
    """The beginning of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError:
        return b""
