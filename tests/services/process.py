"""A real service as a child process: bounded start and stop, a kept log, SIGKILL and SIGSTOP on request."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

POLL_S = 0.05
LOG_TAIL_BYTES = 6000


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Poll until `condition`; raises TimeoutError naming `what` after the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(POLL_S)


def answers(url: str) -> bool:
    """Whether a GET of `url` gives 200 now."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 (loopback, http)
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class ServiceProcess:
    """One program, started, stopped, killed, frozen and started again over the same folder."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        ready: Callable[[], bool],
        *,
        env: Mapping[str, str] | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        self._command = list(command)
        self._folder = folder
        self._ready = ready
        self._env = dict(env or {})
        self._start_timeout_s = start_timeout_s
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def start(self) -> None:
        """Start and wait until it serves; raises RuntimeError with the log's end when it does not."""
        if self._child:
            return
        # With the test process gone, so is the service, even after kill -9.
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                guard + self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=os.environ | self._env,
                start_new_session=True,
            )
        try:
            wait_until(self._ready_or_dead, f"{self.name} serves", self._start_timeout_s)
        except TimeoutError as error:
            self.kill9()
            raise RuntimeError(f"{error}\n{self.log_tail()}") from error
        if self._child.poll() is not None:
            self._child = None
            raise RuntimeError(f"{self.name} ended at once\n{self.log_tail()}")

    def stop(self, timeout_s: float = 30.0) -> None:
        """SIGTERM, and SIGKILL for what does not end in time."""
        self._end(signal.SIGTERM, timeout_s)

    def kill9(self) -> None:
        """SIGKILL, and wait for the end."""
        self._end(signal.SIGKILL, 10.0)

    def pause(self) -> None:
        """SIGSTOP: the process keeps its sockets and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after pause()."""
        self._signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """The newest part of the log, empty if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return ""

    def rss_bytes(self) -> int:
        """Resident memory of the running process."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def _ready_or_dead(self) -> bool:
        return self._child is None or self._child.poll() is not None or self._ready()

    def _signal(self, number: signal.Signals) -> None:
        if self._child and self._child.poll() is None:
            os.killpg(self._child.pid, number)

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        child = self._child
        if not child:
            return
        self._signal(number)
        self._signal(signal.SIGCONT)
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            child.wait(10)
        self._child = None
