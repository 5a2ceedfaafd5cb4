"""Child processes that never outlive us: started together, watched together, stopped together."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

PARENT_VARIABLE = "_FABRIC_SENTINEL_PARENT_PID"
_PR_SET_PDEATHSIG = 1  # prctl(2): the kernel signals a child whose parent died, even by SIGKILL
_POLL_SECONDS = 0.1


class ChildFailedError(Exception):
    """A child ended by itself although it should have gone on."""


@dataclass(slots=True)
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    stream: IO[bytes]


@dataclass(slots=True)
class Children:
    """Starts `fabric-sentinel …` children with logs of their own under `log_dir`."""

    log_dir: Path
    environment: Mapping[str, str]
    _children: list[_Child] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Make the log folder."""
        self.log_dir.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop whatever still runs, last started first."""
        for child in reversed(self._children):
            self._stop(child, grace_seconds=5)

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Start `fabric-sentinel <arguments>`; its output goes to `<log_dir>/<name>.log`."""
        log = self.log_dir / f"{name}.log"
        stream = log.open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "fabric_sentinel", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self.environment, PARENT_VARIABLE: str(os.getpid())},
            start_new_session=True,  # Ctrl-C reaches us alone: we stop the children in order
        )
        self._children.append(_Child(name, process, log, stream))

    def check(self) -> None:
        """Raise ChildFailedError if a child ended, with the end of its log."""
        for child in self._children:
            if (code := child.process.poll()) is not None:
                raise ChildFailedError(
                    f"{child.name} ended with exit code {code}; its log {child.log} ends:\n{_tail(child.log)}"
                )

    def stop(self, name: str, *, grace_seconds: float) -> None:
        """Ask a child to finish what it holds; kill it after the grace."""
        for child in [child for child in self._children if child.name == name]:
            self._stop(child, grace_seconds=grace_seconds)
            self._children.remove(child)

    def wait(self, name: str, *, timeout_seconds: float) -> bool:
        """True once the named child has ended by itself within the time; its exit code must be 0."""
        child = next(child for child in self._children if child.name == name)
        deadline = time.monotonic() + timeout_seconds
        while child.process.poll() is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        self._children.remove(child)
        child.stream.close()
        if child.process.returncode:
            raise ChildFailedError(f"{name} ended with exit code {child.process.returncode}:\n{_tail(child.log)}")
        return True

    def _stop(self, child: _Child, *, grace_seconds: float) -> None:
        if child.process.poll() is None:
            child.process.send_signal(signal.SIGTERM)
            try:
                child.process.wait(grace_seconds)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        child.stream.close()


def bind_to_parent() -> None:
    """In a child: end when the parent does, even if it is killed. Elsewhere: nothing."""
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(
        _PR_SET_PDEATHSIG, signal.SIGKILL
    )  # there is nobody left to wait for a clean end
    if os.getppid() != int(parent):  # it died before we asked
        sys.exit(1)


def _tail(log: Path, *, lines: int = 15) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
