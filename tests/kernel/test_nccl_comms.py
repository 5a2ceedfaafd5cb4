"""Births and deaths of communicators are seen with what the call says; without a GPU the real ones fail, and say so."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from producers.kernel.nccl_rows import CommEvent, CommFunction, unique_id_hash
from streams.contract.calls import Op
from tests.kernel.conftest import DEADLINE_S, Caller, Samples

pytestmark = pytest.mark.kernel

Start = Callable[[Path], Caller]
NULL = "p:0"
UNIQUE_ID = bytes((7 * i) % 256 for i in range(128))
HASH = unique_id_hash(UNIQUE_ID)
ID_BY_VALUE, ID_BY_POINTER = f"id:{UNIQUE_ID.hex()}", f"idp:{UNIQUE_ID.hex()}"


def events_of(samples: Samples, pid: int, how_many: int) -> list[CommEvent]:
    seen: list[CommEvent] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(seen) < how_many and time.monotonic() < deadline:
        seen += [event for event in samples.probes.events() if event.pid == pid]
    return seen


@pytest.mark.parametrize("release", ["2.21.5", "2.32.3"])
def test_a_real_init_that_fails_is_seen_with_rank_size_and_id(
    release: str, nccl_library: Callable[[str], Path], caller: Start, samples: Samples
) -> None:
    process = caller(nccl_library(release))
    samples.probes.rescan()

    answers = [
        process.call("ncclCommInitRank", "s:0", "i:16", ID_BY_VALUE, "i:5"),
        process.call("ncclCommInitRankConfig", "s:0", "i:16", ID_BY_VALUE, "i:6", NULL),
    ]

    assert all(answer.results != [0] for answer in answers)
    assert [
        (event.function, event.rank, event.nranks, event.unique_id_hash, event.comm_ptr, event.failed)
        for event in events_of(samples, process.pid, 2)
    ] == [
        (CommFunction.INIT_RANK, 5, 16, HASH, 0, True),
        (CommFunction.INIT_RANK_CONFIG, 6, 16, HASH, 0, True),
    ]


def test_every_birth_carries_what_its_call_says(fake_library: Path, caller: Start, samples: Samples) -> None:
    process = caller(fake_library)
    samples.probes.rescan()
    before_ns = time.time_ns()

    slots = process.call("ncclCommInitRank", "s:0", "i:8", ID_BY_VALUE, "i:3").slots
    parent = f"p:{slots[0]}"
    process.call("ncclCommInitRankConfig", "s:1", "i:8", ID_BY_VALUE, "i:0", NULL)
    process.call("ncclCommInitRankScalable", "s:2", "i:8", "i:7", "i:1", ID_BY_POINTER, NULL)
    process.call("ncclCommSplit", parent, "i:2", "i:-5", "s:3", NULL)
    process.call("ncclCommShrink", parent, NULL, "i:0", "s:4", NULL, "i:0")
    process.call("ncclCommGrow", parent, "i:12", ID_BY_POINTER, "i:11", "s:5", NULL)
    slots = process.call("ncclCommGrow", parent, "i:12", NULL, "i:-1", "s:6", NULL).slots
    events = events_of(samples, process.pid, 7)

    assert [event.comm_ptr for event in events] == slots[:7]
    assert [
        (event.function.name, event.rank, event.nranks, event.color, event.order_key, event.unique_id_hash)
        for event in events
    ] == [
        ("INIT_RANK", 3, 8, None, None, HASH),
        ("INIT_RANK_CONFIG", 0, 8, None, None, HASH),
        ("INIT_RANK_SCALABLE", 7, 8, None, None, HASH),
        ("SPLIT", None, None, 2, -5, None),
        ("SHRINK", None, None, None, None, None),
        ("GROW", 11, 12, None, None, HASH),
        ("GROW", None, 12, None, None, None),
    ]
    assert [event.parent_ptr for event in events] == [None, None, None, *[slots[0]] * 4]
    assert [event.failed for event in events] == [False] * 7
    assert all(before_ns - 1_000_000 <= event.time_ns <= event.returned_ns for event in events)


def test_one_process_with_many_devices_gives_one_birth_per_device(
    fake_library: Path, caller: Start, samples: Samples
) -> None:
    process = caller(fake_library)
    samples.probes.rescan()

    slots = process.call("ncclCommInitAll", "s:0", "i:8", NULL).slots

    events = events_of(samples, process.pid, 8)
    assert [(event.comm_ptr, event.rank, event.nranks) for event in events] == [
        (slots[rank], rank, 8) for rank in range(8)
    ]


def test_deaths_name_their_communicator_and_a_refused_one_is_a_failure(
    fake_library: Path, caller: Start, samples: Samples
) -> None:
    process = caller(fake_library)
    samples.probes.rescan()

    for function in ("ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort"):
        process.call(function, "p:4096")
    process.call("ncclCommDestroy", NULL)

    assert [
        (event.function, event.comm_ptr, event.is_birth, event.failed) for event in events_of(samples, process.pid, 4)
    ] == [
        (CommFunction.FINALIZE, 4096, False, False),
        (CommFunction.DESTROY, 4096, False, False),
        (CommFunction.ABORT, 4096, False, False),
        (CommFunction.DESTROY, 0, False, True),
    ]


def test_a_process_that_ends_takes_its_communicators_with_it(fake_library: Path, samples: Samples) -> None:
    process = Caller(fake_library)
    samples.probes.rescan()
    kept = process.call("ncclCommInitRank", "s:0", "i:2", ID_BY_VALUE, "i:1").slots[0]
    ended = process.call("ncclCommInitRank", "s:1", "i:2", ID_BY_VALUE, "i:0").slots[1]
    process.call("ncclCommDestroy", f"p:{ended}")
    assert len(events_of(samples, process.pid, 3)) == 3
    samples.probes.rescan()
    assert events_of(samples, process.pid, 0) == []

    process.close()
    samples.probes.rescan()

    assert [
        (event.function, event.comm_ptr, event.rank, event.nranks, event.unique_id_hash)
        for event in events_of(samples, process.pid, 1)
    ] == [(CommFunction.PROCESS_EXIT, kept, 1, 2, HASH)]


def test_calls_that_succeed_or_are_in_progress_are_no_failures_and_numbers_start_again_after_a_destroy(
    fake_library: Path, caller: Start, samples: Samples
) -> None:
    process = caller(fake_library)
    samples.probes.rescan()

    def all_reduce(result: int, comm: int, times: int) -> None:
        process.call(
            "ncclAllReduce", NULL, NULL, f"z:{result + 1}", "i:7", f"i:{result}", f"p:{comm}", NULL, times=times
        )

    all_reduce(0, 8192, 5)
    all_reduce(7, 8192, 6)
    all_reduce(1, 8192, 7)
    process.call("ncclCommDestroy", "p:8192")
    all_reduce(2, 8192, 3)
    rows = samples.until(process.pid, calls=21)

    seen = {
        count: (
            sum(row.calls for row in rows if row.count == count),
            sum(row.failed for row in rows if row.count == count),
            min(row.first_seq for row in rows if row.count == count),
            max(row.last_seq for row in rows if row.count == count),
        )
        for count in {row.count for row in rows}
    }
    assert seen == {1: (5, 0, 1, 5), 8: (6, 0, 6, 11), 2: (7, 7, 12, 18), 3: (3, 3, 1, 3)}
    assert {(row.op, row.comm_ptr) for row in rows} == {(Op.ALL_REDUCE, 8192)}
