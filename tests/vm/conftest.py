"""Fixtures that boot the QEMU guest; what it needs is installed on first use."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.paths import cache_dir, need, need_guest, repo_root

HERE = Path(__file__).parent
INSTALL_SECONDS = 900

Boot = Callable[..., Path]


@pytest.fixture(scope="session")
def lab() -> Path:
    """The lab's folder in the cache, with kernel, QEMU and virtme-ng installed."""
    need_guest()
    answer = subprocess.run([HERE / "install"], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    need(
        answer.returncode == 0,
        f"the QEMU lab cannot be installed: {answer.stderr.strip()[-500:]}",
        "run tests/vm/install and read what it says",
    )
    return cache_dir() / "vm"


@pytest.fixture(scope="session")
def boot(lab: Path) -> Boot:
    """Run a guest script to its end; returns the folder that it wrote to (its last argument is that folder)."""

    def run(script: str, *, name: str, seconds: int, arguments: tuple[str, ...] = ()) -> Path:
        folder = lab / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        command = [HERE / "boot", "-t", str(seconds), "-o", folder, HERE / "guest" / script]
        answer = subprocess.run(
            [*command, repo_root(), folder, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds + 60,
            check=False,
        )
        output = folder / "output"
        said = output.read_text(errors="replace")[-2000:] if output.exists() else ""
        assert answer.returncode == 0, f"{script} ended with {answer.returncode}: {answer.stderr}\n{said}"
        return folder

    return run
