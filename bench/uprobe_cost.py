"""What the NCCL probes cost: nanoseconds per call of the real libnccl, bare and probed, measured in one run.

    python bench/uprobe_cost.py [/path/to/libnccl.so.2]

A C loop calls ncclAllReduce without a communicator, which NCCL refuses at once: the difference between the rows is the
probes' own time. Needs root, bcc, kernel headers (infra/dev/host-headers) and a C compiler.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from producers.kernel.elf_symbols import read_exports
from producers.kernel.loader import LoaderUnavailable, Program, load
from producers.kernel.nccl import SOURCES

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("FABRIC_CACHE") or Path.home() / ".cache" / "fabric-sentinel")
CALLS, ROUNDS = 100_000, 7

DRIVER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
typedef int (*all_reduce)(void *, void *, size_t, int, int, void *, void *);
int main(int argc, char **argv) {
  void *library = dlopen(argv[1], RTLD_NOW);
  all_reduce call = library ? (all_reduce)dlsym(library, "ncclAllReduce") : 0;
  if (!call) { fprintf(stderr, "%s\n", dlerror()); return 1; }
  char line[64];
  while (fgets(line, sizeof line, stdin)) {
    long calls = atol(line);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < calls; i++) call(0, 0, 1 << 20, 7, 0, 0, 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.1f\n", ((end.tv_sec - begin.tv_sec) * 1e9 + end.tv_nsec - begin.tv_nsec) / calls);
    fflush(stdout);
  }
}
"""
EMPTY = """
#include <uapi/linux/ptrace.h>
int empty(struct pt_regs *ctx) { return 0; }
"""
SAME_CALL = "if (open && open->sp == PT_REGS_SP(ctx))"


class Driver:
    """The C loop, kept running so that all rows are measured in one process."""

    def __init__(self, library: Path, folder: Path) -> None:
        source, binary = folder / "driver.c", folder / "driver"
        source.write_text(DRIVER)
        subprocess.run(["cc", "-O2", "-o", str(binary), str(source), "-ldl"], check=True)
        self._process = subprocess.Popen(
            [str(binary), str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ns_per_call(self) -> float:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{CALLS}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = CACHE / "nccl" / "2.32.3" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    parser.add_argument("libnccl", nargs="?", type=Path, default=default)
    library = parser.parse_args().libnccl
    if os.geteuid() != 0 or not library.exists():
        print(f"skipped: needs root and {library} (tests/kernel fetches it)", file=sys.stderr)
        return 0
    try:
        measure(library)
    except LoaderUnavailable as error:
        print(f"skipped: {error}", file=sys.stderr)
    return 0


def measure(library: Path) -> None:
    offset = read_exports(library).offsets["ncclAllReduce"]
    ours = "\n".join((ROOT / "bpf" / name).read_text() for name in SOURCES)
    assert SAME_CALL in ours
    # Without its return probe the entry program would take each call for the last one seen twice.
    entry_only = ours.replace(SAME_CALL, "if (0)")
    rows: list[tuple[str, str, list[str]]] = [
        ("no probe", EMPTY, []),
        ("empty program at entry", EMPTY, ["empty"]),
        ("empty program at entry and return", EMPTY, ["empty", "empty"]),
        ("nccl_calls.c at entry", entry_only, ["enter_all_reduce"]),
        ("nccl_calls.c at entry and return", ours, ["enter_all_reduce", "leave_all_reduce"]),
    ]
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(library, Path(folder))
        driver.ns_per_call()
        figures: dict[str, list[float]] = {name: [] for name, _, _ in rows}
        programs = {source: load(source) for _, source, _ in rows}
        for _ in range(ROUNDS):
            for name, source, functions in rows:
                figures[name].append(probed(programs[source], library, offset, functions, driver.ns_per_call))
        driver.close()
    bare = statistics.median(figures["no probe"])
    print(f"{library.resolve()}, kernel {os.uname().release}, {ROUNDS} x {CALLS} calls, medians")
    for name, values in figures.items():
        median = statistics.median(values)
        spread = f"(from {min(values):.0f} to {max(values):.0f})"
        print(f"{name:36} {median:8.0f} ns/call   +{median - bare:6.0f} ns   {spread}")


def probed(program: Program, library: Path, offset: int, functions: list[str], run: Callable[[], float]) -> float:
    attach = (program.attach_uprobe, program.attach_uretprobe)
    handles = [attach[end](library, offset, function) for end, function in reversed(list(enumerate(functions)))]
    try:
        return run()
    finally:
        program.detach(*handles)


if __name__ == "__main__":
    sys.exit(main())
