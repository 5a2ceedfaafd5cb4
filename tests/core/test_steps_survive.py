"""What must not make a job forget its steps: a cold start, a change of pace, a node that was silent for a while."""

from __future__ import annotations

import numpy as np

from streams.contract.findings import Health, Verdict
from streams.core.iterations import even_group
from tests.core.findings import run
from tests.core.scene import Load, Scene, Training

ALONE = Training(name="llama", nodes=("n1",))


def times(*gaps_ms: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.cumsum(np.array([0, *gaps_ms], np.int64)) * 1000


def test_a_cold_first_step_does_not_make_two_steps_one() -> None:
    assert even_group(times(650, 490, 450, 480, 500, 490, 460, 490, 480, 470, 500)) == 1


def test_bursts_are_still_grouped_as_they_repeat() -> None:
    burst = (20, 20, 20, 440)
    assert even_group(times(*burst * 8)) == 4


def test_steps_are_found_again_after_the_pace_changed() -> None:
    assert even_group(times(*(450,) * 100, *(710,) * 40)) == 1


def test_a_node_that_is_silent_for_seconds_keeps_its_jobs_baseline_and_the_next_culprit_is_named() -> None:
    noisy = Load(name="noisy", node="n1", on=(900, 1200), tx_per_tick=5_000_000)
    kept = run(Scene(ticks=1500, trainings=[ALONE], loads=[noisy], silent={"n1": (600, 660)}))

    (incident,) = kept.standing()
    assert incident.verdict is Verdict.CONFIRMED
    assert [cause.pod for cause in incident.causes] == ["noisy"]
    assert kept.states["train/job/llama"].health is Health.HEALTHY
    assert kept.states["train/job/llama"].job_epoch == 0
