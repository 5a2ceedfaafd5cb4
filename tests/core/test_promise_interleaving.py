"""Promise 1: any interleaving of the partitions, and a restore at any record, give byte-equal findings."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.contract.findings import Verdict
from tests.core.findings import Kept, apply
from tests.core.scene import Load, Log, Record, Scene, Training

PARTITIONS = 2
RUNS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def troubled_scene() -> Scene:
    """Two slowed jobs on four nodes in two partitions; one node falls silent, one restarts its agent, one is late."""
    return Scene(
        ticks=460,
        partitions=PARTITIONS,
        partition_of={"n1": 0, "n2": 1, "n3": 0, "n4": 1},
        trainings=[
            Training(name="llama", nodes=("n1", "n2"), compute_us=150_000, bytes_per_step=15_000_000),
            Training(name="gpt", nodes=("n1", "n3"), compute_us=220_000, bytes_per_step=12_000_000),
            Training(name="late", nodes=("n4",), compute_us=120_000, bytes_per_step=12_000_000),
        ],
        loads=[
            Load(name="noisy", node="n1", on=(240, 350), tx_per_tick=5_000_000),
            Load(name="steady", node="n2", tx_per_tick=1_000_000, harm=0),
        ],
        silent={"n2": (120, 190), "n3": (400, 460)},
        restart_at={"n1": 150},
        join_at={"n4": 100},
        price_drifts=True,
    )


@cache
def logs() -> Log:
    return troubled_scene().logs()


@cache
def expected() -> Kept:
    return apply(troubled_scene().in_time_order(), PARTITIONS)


def interleaved(seed: int, longest_run: int) -> Iterator[tuple[str, int, Record]]:
    """A random interleaving of the topic-partitions; each partition's own order is kept."""
    chance = random.Random(seed)
    left = {place: iter(log) for place, log in logs().items()}
    while left:
        place = chance.choice(sorted(left))
        for _ in range(chance.randint(1, longest_run)):
            record = next(left[place], None)
            if record is None:
                del left[place]
                break
            yield *place, record


def test_the_scene_has_something_to_get_wrong() -> None:
    episodes = expected().episodes.values()
    assert sorted(episode.job for episode in episodes) == ["train/job/gpt", "train/job/llama"]
    assert {episode.verdict for episode in episodes} == {Verdict.CONFIRMED}
    assert len(expected().standing()) == 1


@RUNS
@given(seed=st.integers(0, 2**32), longest_run=st.sampled_from([1, 3, 20, 400]))
def test_any_interleaving_of_the_partitions_gives_byte_equal_findings(seed: int, longest_run: int) -> None:
    assert apply(interleaved(seed, longest_run), PARTITIONS).encoded() == expected().encoded()


@RUNS
@given(
    seed=st.integers(0, 2**32),
    restore_at=st.frozensets(st.integers(0, 1200), min_size=1, max_size=12),
)
def test_a_core_restored_at_any_record_goes_on_as_if_never_stopped(seed: int, restore_at: frozenset[int]) -> None:
    records = list(interleaved(seed, 20))
    assert apply(records, PARTITIONS, restore_at=restore_at).encoded() == expected().encoded()


def test_a_core_restored_before_every_single_record_goes_on_as_if_never_stopped() -> None:
    records = list(troubled_scene().in_time_order())
    kept = apply(records, PARTITIONS, restore_at=frozenset(range(0, len(records), 7)))
    assert kept.encoded() == expected().encoded()


def test_an_interleaving_changes_no_revision_of_an_episode_either() -> None:
    one = [(e.episode_id, e.revision, e.as_of_tick, e.verdict) for e in expected().revisions]
    other = [
        (e.episode_id, e.revision, e.as_of_tick, e.verdict) for e in apply(interleaved(7, 50), PARTITIONS).revisions
    ]
    assert sorted(one) == sorted(other)
