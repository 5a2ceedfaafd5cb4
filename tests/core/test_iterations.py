"""Steps from calls: which call marks them, and how long they took, whatever their size against a tick."""

from __future__ import annotations

import numpy as np
import pytest

from streams.contract.calls import COLUMNS, Column, pack_rows
from streams.contract.rosters import roster_bytes
from streams.contract.slices import JobSlice, SliceCommunicator, SliceRoster
from streams.core.iterations import Roster, Sample, Steps, choose_anchor, even_group, job_steps, take

START = 1_000_000
FLUSH_US = 500_000
Call = tuple[int, int, int]  # microseconds, communicator, count


def pieces(calls: list[Call], *, ranks: int = 1, seconds: int) -> list[JobSlice]:
    """Slices of one node with rank r on communicators 2r and 2r + 1, rows made tick by tick as the agent makes them."""
    out = []
    for number in range(seconds * 2):
        rows: dict[tuple[int, int, int], list[int]] = {}
        for at, communicator, count in sorted(calls):
            if not number * FLUSH_US <= at < (number + 1) * FLUSH_US:
                continue
            offset = at - number * FLUSH_US
            key = (offset // 100_000, communicator, count)
            row = rows.setdefault(key, [0] * COLUMNS)
            row[Column.TICK_OFFSET], row[Column.COMMUNICATOR], row[Column.COUNT] = key
            row[Column.OP], row[Column.DTYPE], row[Column.BYTES] = 1, 7, 4 * count
            row[Column.FIRST_US] = offset if row[Column.CALLS] == 0 else row[Column.FIRST_US]
            row[Column.CALLS] += 1
            row[Column.LAST_US] = offset
        out.append(
            JobSlice(
                cluster="c",
                job="j",
                node="n",
                first_tick=START + 5 * number,
                ticks=5,
                roster=roster_bytes(
                    SliceRoster(
                        communicators=[
                            SliceCommunicator(comm=f"comm-{index % 2}", pid=100 + index // 2, moves_bytes=True)
                            for index in range(2 * ranks)
                        ]
                    )
                ),
                rows=pack_rows(np.array(list(rows.values()), np.int64).reshape(-1, COLUMNS)),
            )
        )
    return out


def follow(found: list[JobSlice], learn: int) -> tuple[Steps, list[Sample]]:
    """Learn on the first slices, then collect the job's steps."""
    steps, samples = Steps(), []
    roster: Roster | None = None
    for number, piece in enumerate(found):
        roster = take(steps, piece, roster)
        if steps.anchor is None and number >= learn:
            choose_anchor(steps)
        samples.extend(job_steps(steps, piece.first_tick + 4))
    return steps, samples


def test_the_rarest_call_that_recurs_evenly_marks_the_steps() -> None:
    calls = [(step * 400_000 + layer * 3_000, 0, 1 << 20) for step in range(40) for layer in range(30)] + [
        (step * 400_000 + 200_000, 1, 1) for step in range(40)
    ]
    steps, samples = follow(pieces(calls, seconds=16), learn=8)
    assert steps.anchor is not None
    assert (steps.anchor.token.comm, steps.anchor.token.count, steps.anchor.group) == ("comm-1", 1, 1)
    assert {sample.step_us for sample in samples} == {400_000}


def test_equal_calls_in_bursts_are_grouped_into_one_step() -> None:
    calls = [(step * 700_000 + bucket * 40_000, 0, 1 << 20) for step in range(30) for bucket in range(4)]
    steps, samples = follow(pieces(calls, seconds=21), learn=20)
    assert steps.anchor is not None
    assert steps.anchor.group == 4
    assert {sample.step_us for sample in samples} == {700_000}


def test_steps_shorter_than_a_tick_are_counted_by_calls_per_tick() -> None:
    calls = [(step * 23_000, 0, 64) for step in range(600)]
    steps, samples = follow(pieces(calls, seconds=13), learn=6)
    assert steps.anchor is not None
    assert {sample.step_us for sample in samples} == {23_000}
    assert max(sample.steps for sample in samples) > 1


def test_a_step_is_as_long_as_the_rank_that_waited_least_says() -> None:
    def late(step: int) -> int:
        return 60_000 if step == 20 else 0

    calls = [(step * 400_000, 0, 8) for step in range(40)]
    calls += [(step * 400_000 + 10_000 + late(step), 2, 8) for step in range(40)]
    _, samples = follow(pieces(calls, ranks=2, seconds=16), learn=8)
    assert {sample.step_us for sample in samples} == {400_000, 340_000}


@pytest.mark.parametrize("lone", [[100, 250, 300, 900, 1000, 1800, 1900], [10, 20], [5] * 12])
def test_calls_without_a_beat_mark_nothing(lone: list[int]) -> None:
    assert even_group(np.array(lone, np.int64)) == 0


def test_failed_calls_mark_steps_too() -> None:
    found = pieces([(step * 300_000, 0, 8) for step in range(30)], seconds=9)
    spoiled = []
    for piece in found:
        rows = np.frombuffer(piece.rows, "<i8").reshape(-1, COLUMNS).copy()
        rows[:, Column.FAILED] = rows[:, Column.CALLS]
        spoiled.append(
            JobSlice(**{name: getattr(piece, name) for name in piece.__struct_fields__} | {"rows": rows.tobytes()})
        )
    _, samples = follow(spoiled, learn=6)
    assert {sample.step_us for sample in samples} == {300_000}
