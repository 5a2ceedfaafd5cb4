"""Generated /proc trees."""

from pathlib import Path


def make_process(
    proc: Path, pid: int, *, comm: str = "train", cgroup: str = "0::/\n", start_ticks: int = 100, environ: bytes = b""
) -> None:
    """Write what the kernel shows of one process."""
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    after = " ".join(["S", *("0" for _ in range(18)), str(start_ticks), "0", "0"])
    (folder / "stat").write_text(f"{pid} ({comm}) {after}\n")
    (folder / "cgroup").write_text(cgroup)
    (folder / "environ").write_bytes(environ)
