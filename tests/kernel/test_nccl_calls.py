"""With the real libnccl on this host's kernel, every call is counted once, with its exact bytes."""

import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from producers.kernel.nccl import NcclCalls
from producers.kernel.nccl_rows import CallRow
from streams.contract.calls import Op
from tests.kernel.conftest import Caller, Samples, libc_path
from tests.paths import need, repo_root

pytestmark = pytest.mark.kernel

Start = Callable[[Path], Caller]
Fetch = Callable[[str], Path]

# No two arguments of a call are alike, so that a probe that reads the wrong one is found out. The communicator is
# zeroed memory, which NCCL refuses by its own check; the buffers are never touched.
NULL, BUFFERS, STREAM, COMM = "p:0", ["p:4096", "p:8192"], "p:12288", "p:blank"
FLOAT16, FLOAT32, UINT8, INT64 = 6, 7, 1, 4
REFUSED = [4]  # ncclInvalidArgument


def rooted(count: int, dtype: int) -> list[str]:
    """Two buffers, count, type, an operation or a root, communicator, stream."""
    return [*BUFFERS, f"z:{count}", f"i:{dtype}", "i:3", COMM, STREAM]


def rootless(count: int, dtype: int) -> list[str]:
    return [*BUFFERS, f"z:{count}", f"i:{dtype}", COMM, STREAM]


def reduce(count: int, dtype: int) -> list[str]:
    return [*BUFFERS, f"z:{count}", f"i:{dtype}", "i:3", "i:5", COMM, STREAM]


def one_buffer(count: int, dtype: int) -> list[str]:
    return [BUFFERS[0], f"z:{count}", f"i:{dtype}", "i:3", COMM, STREAM]


PUT_SIGNAL = [BUFFERS[0], "z:2004", f"i:{FLOAT32}", "i:3", "p:16384", "z:20480", "i:9", "i:11", "i:13", COMM, STREAM]

# Function, its arguments, how often, and what must come out: operation, type, count.
EVERY_RELEASE = [
    ("ncclAllReduce", rooted(1 << 20, FLOAT32), 5, (Op.ALL_REDUCE, FLOAT32, 1 << 20)),
    ("ncclReduceScatter", rooted(1001, FLOAT16), 4, (Op.REDUCE_SCATTER, FLOAT16, 1001)),
    ("ncclAllGather", rootless(1002, UINT8), 3, (Op.ALL_GATHER, UINT8, 1002)),
    ("ncclBroadcast", rooted(1003, INT64), 2, (Op.BROADCAST, INT64, 1003)),
    ("ncclBcast", one_buffer(1004, INT64), 6, (Op.BROADCAST, INT64, 1004)),
    ("ncclReduce", reduce(1005, FLOAT32), 7, (Op.REDUCE, FLOAT32, 1005)),
    ("ncclSend", one_buffer((1 << 40) + 1, FLOAT16), 8, (Op.SEND, FLOAT16, (1 << 40) + 1)),
    ("ncclRecv", one_buffer(1007, FLOAT16), 9, (Op.RECV, FLOAT16, 1007)),
]
SINCE_2_28 = [
    ("ncclAlltoAll", rootless(2001, FLOAT32), 3, (Op.ALL_TO_ALL, FLOAT32, 2001)),
    ("ncclGather", rooted(2002, FLOAT32), 4, (Op.GATHER, FLOAT32, 2002)),
    ("ncclScatter", rooted(2003, FLOAT32), 5, (Op.SCATTER, FLOAT32, 2003)),
    ("ncclPutSignal", PUT_SIGNAL, 6, (Op.PUT_SIGNAL, FLOAT32, 2004)),
    ("ncclSignal", ["i:3", "i:9", "i:11", "i:13", COMM, STREAM], 7, (Op.SIGNAL, None, 0)),
    ("ncclWaitSignal", ["i:3", BUFFERS[0], COMM, STREAM], 8, (Op.WAIT_SIGNAL, None, 0)),
]
CONFIG_FORMS = [
    ("ncclAllReduceConfig", [*rooted(3001, FLOAT32), NULL], 2, (Op.ALL_REDUCE, FLOAT32, 3001)),
    ("ncclReduceScatterConfig", [*rooted(3002, FLOAT32), NULL], 3, (Op.REDUCE_SCATTER, FLOAT32, 3002)),
    ("ncclAllGatherConfig", [*rootless(3003, FLOAT32), NULL], 4, (Op.ALL_GATHER, FLOAT32, 3003)),
    ("ncclBroadcastConfig", [*rooted(3004, FLOAT32), NULL], 5, (Op.BROADCAST, FLOAT32, 3004)),
    ("ncclReduceConfig", [*reduce(3005, FLOAT32), NULL], 6, (Op.REDUCE, FLOAT32, 3005)),
    ("ncclAlltoAllConfig", [*rootless(3006, FLOAT32), NULL], 7, (Op.ALL_TO_ALL, FLOAT32, 3006)),
    ("ncclGatherConfig", [*rooted(3007, FLOAT32), NULL], 8, (Op.GATHER, FLOAT32, 3007)),
    ("ncclScatterConfig", [*rooted(3008, FLOAT32), NULL], 9, (Op.SCATTER, FLOAT32, 3008)),
]
RELEASES = {"2.21.5": EVERY_RELEASE, "2.32.3": EVERY_RELEASE + SINCE_2_28 + CONFIG_FORMS}


def totals(rows: list[CallRow]) -> Counter[tuple[Op, int | None, int]]:
    found: Counter[tuple[Op, int | None, int]] = Counter()
    for row in rows:
        found[row.op, row.dtype, row.count] += row.calls
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_every_operation_of_a_release_is_counted_with_its_bytes_and_its_failures(
    release: str, nccl_library: Fetch, caller: Start, samples: Samples
) -> None:
    process = caller(nccl_library(release))
    samples.probes.rescan()
    expected = {kind: times for _, _, times, kind in RELEASES[release]}

    for function, args, times, _ in RELEASES[release]:
        assert process.call(function, *args, times=times).results == REFUSED
    rows = samples.until(process.pid, calls=sum(expected.values()))

    assert totals(rows) == expected
    assert sum(row.failed for row in rows) == sum(expected.values())
    bytes_seen = sum(row.calls * (row.call_bytes or 0) for row in rows)
    widths = {FLOAT16: 2, FLOAT32: 4, UINT8: 1, INT64: 8, None: 0}
    assert bytes_seen == sum(times * count * widths[dtype] for (_, dtype, count), times in expected.items())
    assert {row.comm_ptr for row in rows} == {process.blank}
    assert max(row.last_seq for row in rows) == sum(expected.values())
    assert samples.probes.lost.calls == samples.probes.lost.returns == 0


def test_the_two_names_of_one_function_count_as_one(nccl_library: Fetch, caller: Start, samples: Samples) -> None:
    process = caller(nccl_library("2.32.3"))
    samples.probes.rescan()

    process.call("ncclAllReduce", *rooted(77, FLOAT32), times=3)
    process.call("pncclAllReduce", *rooted(77, FLOAT32), times=4)

    assert totals(samples.until(process.pid, calls=7)) == {(Op.ALL_REDUCE, FLOAT32, 77): 7}


def test_rows_carry_the_communicator_the_cgroup_and_times_within_their_tick(
    nccl_library: Fetch, caller: Start, samples: Samples
) -> None:
    process = caller(nccl_library("2.21.5"))
    samples.probes.rescan()
    before_ns = time.time_ns()

    process.call("ncclAllReduce", *rooted(5, FLOAT32), times=2)
    after_ns = time.time_ns()
    rows = samples.until(process.pid, calls=2)

    for row in rows:
        assert row.comm_ptr == process.blank
        assert row.cgroup_id > 0
        assert row.tick == row.first_ns // 100_000_000
        assert before_ns - 1_000_000 <= row.first_ns <= row.last_ns <= after_ns + 1_000_000


def test_nothing_is_lost_or_doubled_while_the_counts_are_being_read(
    nccl_library: Fetch, caller: Start, samples: Samples
) -> None:
    processes = [caller(nccl_library(release)) for release in RELEASES]
    samples.probes.rescan()
    each = 60_000

    for process in processes:
        process.begin("ncclAllReduce", *rooted(9, FLOAT32), times=each // 3, threads=3)
    rows = [samples.until(process.pid, calls=each, pause_s=0) for process in processes]

    assert [sum(row.calls for row in found) for found in rows] == [each, each]
    assert [sum(row.failed for row in found) for found in rows] == [each, each]
    assert all(len({row.tick for row in found}) > 1 for found in rows)
    for process in processes:
        assert process.end().results == REFUSED


def test_an_idle_process_gives_no_rows(nccl_library: Fetch, caller: Start, samples: Samples) -> None:
    process = caller(nccl_library("2.32.3"))
    samples.probes.rescan()

    assert samples.settle(process.pid) == []


@pytest.fixture
def own_copy(nccl_library: Fetch, tmp_path: Path) -> Path:
    """A library that nobody has mapped before, so that nothing is probed in it yet."""
    return shutil.copy(nccl_library("2.21.5"), tmp_path / "libnccl.so.2")


def test_a_process_that_starts_late_with_a_library_of_its_own_is_found_by_the_next_rescan(
    own_copy: Path, caller: Start, samples: Samples
) -> None:
    samples.probes.rescan()
    process = caller(own_copy)

    assert samples.probes.rescan() == 1
    assert samples.probes.rescan() == 0
    process.call("ncclAllReduce", *rooted(11, FLOAT32), times=3)

    assert totals(samples.until(process.pid, calls=3)) == {(Op.ALL_REDUCE, FLOAT32, 11): 3}


def test_a_library_that_was_replaced_under_a_running_process_is_still_probed(
    own_copy: Path, caller: Start, samples: Samples
) -> None:
    process = caller(own_copy)
    own_copy.unlink()
    own_copy.write_bytes(b"not a library any more")

    assert samples.probes.rescan() == 1
    process.call("ncclAllReduce", *rooted(12, FLOAT32), times=4)

    assert totals(samples.until(process.pid, calls=4)) == {(Op.ALL_REDUCE, FLOAT32, 12): 4}


@pytest.fixture
def two_overlays(own_copy: Path, tmp_path: Path) -> Iterator[list[Path]]:
    """One file seen through two overlay mounts, as two containers of one image see it."""
    lower = own_copy.parent
    mounts = []
    for name in ("a", "b"):
        folders = {kind: tmp_path.parent / f"{tmp_path.name}-{name}-{kind}" for kind in ("upper", "work", "merged")}
        for folder in folders.values():
            folder.mkdir()
        options = f"lowerdir={lower},upperdir={folders['upper']},workdir={folders['work']}"
        done = subprocess.run(
            ["mount", "-t", "overlay", "overlay", "-o", options, str(folders["merged"])],
            capture_output=True,
            text=True,
            check=False,
        )
        need(done.returncode == 0, f"no overlay mount: {done.stderr.strip()}", "run on a kernel with overlayfs")
        mounts.append(folders["merged"])
    yield [mount / "libnccl.so.2" for mount in mounts]
    for mount in mounts:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_two_containers_of_one_image_do_not_count_each_other_twice(
    two_overlays: list[Path], caller: Start, samples: Samples
) -> None:
    first, second = (caller(path) for path in two_overlays)

    samples.probes.rescan()
    first.call("ncclAllReduce", *rooted(13, FLOAT32), times=5)
    second.call("ncclAllReduce", *rooted(14, FLOAT32), times=6)

    assert totals(samples.until(first.pid, calls=5)) == {(Op.ALL_REDUCE, FLOAT32, 13): 5}
    rows = samples.until(second.pid, calls=6)
    assert totals(rows) == {(Op.ALL_REDUCE, FLOAT32, 14): 6}
    assert sum(row.failed for row in rows) == 6


def test_a_pinned_library_is_seen_from_its_first_call_also_on_an_overlay(
    bpf: None, own_copy: Path, two_overlays: list[Path], caller: Start
) -> None:
    pinned = [own_copy, two_overlays[0]]
    probes = NcclCalls(bpf_dir=repo_root() / "bpf", libraries=pinned)
    try:
        processes = [caller(path) for path in pinned]
        for process in processes:
            process.call("ncclAllReduce", *rooted(15, FLOAT32), times=2)

        assert probes.rescan() == 0
        samples = Samples(probes)
        for process in processes:
            assert totals(samples.until(process.pid, calls=2)) == {(Op.ALL_REDUCE, FLOAT32, 15): 2}
    finally:
        threading.Thread(target=probes.close, daemon=True).start()


@pytest.mark.parametrize("name", ["libnccl.so.2", "libtorch_cuda.so"])
def test_a_mapped_file_without_nccl_functions_is_a_gap_and_not_an_idle_process(
    name: str, caller: Start, samples: Samples, tmp_path: Path
) -> None:
    other = shutil.copy(libc_path(), tmp_path / name)
    process = caller(Path(other))

    samples.probes.rescan()

    gaps = [gap for gap in samples.probes.gaps if str(process.pid) in gap.reason]
    assert [(gap.source, gap.what) for gap in gaps] == [("nccl", str(other))]


def test_a_framework_that_exports_a_linked_in_nccl_is_probed_like_the_library(
    fake_library: Path, caller: Start, samples: Samples, tmp_path: Path
) -> None:
    process = caller(Path(shutil.copy(fake_library, tmp_path / "libtorch_cuda.so")))

    samples.probes.rescan()
    process.call("ncclAllReduce", *rooted(17, FLOAT32), times=3)

    assert totals(samples.until(process.pid, calls=3)) == {(Op.ALL_REDUCE, FLOAT32, 17): 3}


def test_probes_leave_nothing_behind_when_a_process_is_gone(
    nccl_library: Fetch, samples: Samples, caller: Start
) -> None:
    process = Caller(nccl_library("2.21.5"))
    samples.probes.rescan()
    process.call("ncclAllReduce", *rooted(16, FLOAT32), times=2)
    samples.until(process.pid, calls=2)
    process.close()

    samples.probes.rescan()

    left = samples.probes._program.table("nccl_sequences").items()
    assert [key for key, _ in left if key.tgid == process.pid] == []
