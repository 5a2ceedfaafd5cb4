"""Where tests find shared data and caches, with one rule for what is missing: skip on a laptop, fail in CI."""

import os
import signal
from pathlib import Path

import pytest


def in_ci() -> bool:
    """True where a missing tool or service is a failure (`CI=true`)."""
    return os.environ.get("CI", "").lower() in {"1", "true"}


def repo_root() -> Path:
    """The root of the checkout that holds this file."""
    return Path(__file__).resolve().parents[1]


def need(condition: object, reason: str, fix: str) -> None:
    """Go on if `condition` holds; else skip on a laptop, fail under CI, saying the reason and the fix."""
    if condition:
        return
    message = f"{reason}; fix: {fix}"
    if in_ci():
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def need_guest() -> None:
    """Go on where a QEMU guest may be booted: under CI, or as root by `make vm-test`."""
    wanted = in_ci() or os.environ.get("FABRIC_VM") == "1"
    need(wanted, "this installs QEMU and boots a guest for minutes, so only on request", "make vm-test")
    need(os.geteuid() == 0, "the QEMU guest shares this machine's files and is booted as root", "run as root")


def shared(*parts: str) -> Path:
    """A path inside the shared corpus (`FABRIC_SHARED`, else `shared` beside the checkout), which must exist."""
    root = Path(os.environ.get("FABRIC_SHARED") or repo_root().parent / "shared")
    path = root.joinpath(*parts)
    need(path.exists(), f"shared data {path} is absent", "set FABRIC_SHARED to the folder that holds it")
    return path


def heed_interrupts() -> None:
    """In a child before it starts: a shell's background job ignores SIGINT, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def cache_dir() -> Path:
    """The folder for downloads that outlive a run (`FABRIC_CACHE`, else ~/.cache/fabric-sentinel), created."""
    path = Path(os.environ.get("FABRIC_CACHE") or Path.home() / ".cache" / "fabric-sentinel")
    path.mkdir(parents=True, exist_ok=True)
    return path
