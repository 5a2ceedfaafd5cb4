"""When a series left its level, and when it only looked like it."""

from __future__ import annotations

import numpy as np
import pytest

from streams.core.change import cusum, split, stands_out
from streams.core.iterations import Sample
from streams.core.settings import JudgeSettings
from streams.core.tracker import Track, Tracker

QUIET = [1000 + 10 * (number % 5 - 2) for number in range(200)]


def test_one_step_however_long_cannot_raise_the_alarm() -> None:
    total = cusum(0.0, 1000.0, k=0.6, clip=4.0)
    assert total == pytest.approx(3.4)
    assert cusum(cusum(total, 1000.0, k=0.6, clip=4.0), 1000.0, k=0.6, clip=4.0) >= 8.0


def test_a_change_is_dated_to_its_first_step() -> None:
    assert split([1000, 1010, 990, 1005] * 5 + [1300, 1310, 1290, 1305]) == 20
    assert split([1000] * 6 + [2000, 9000, 2000]) == 6


def test_three_steps_that_are_all_slow_stand_out() -> None:
    assert stands_out([1300, 1310, 1290], QUIET, 1000, minimum_e4=300)


def test_less_than_the_minimum_effect_never_stands_out() -> None:
    assert not stands_out([1029] * 100, QUIET, 1000, minimum_e4=300)


def test_a_few_very_long_steps_among_normal_ones_do_not_stand_out() -> None:
    assert not stands_out([1600, 1000, 1010, 1700, 990], QUIET, 1000, minimum_e4=300)
    tailed = [1500 if number % 30 == 0 else 1000 for number in range(200)]
    assert not stands_out([1600, 1400, 1035], tailed, 1000, minimum_e4=300)


@pytest.mark.parametrize(("noise", "tail"), [(0.01, 0.03), (0.02, 0.0), (0.05, 0.0)])
def test_noise_raises_at_most_one_alarm_in_ten_job_hours(noise: float, tail: float) -> None:
    chance = np.random.default_rng(3)
    steps = 10 * 7200
    wobble = np.where(chance.random(steps) < tail, chance.exponential(0.3, steps), chance.normal(0, noise, steps))
    track, alarms = Track(), 0
    tracker = Tracker(JudgeSettings(), track)
    now_us = 10**15
    for part in np.maximum(wobble, -0.5).tolist():
        elapsed_us = int(500_000 * (1 + part))
        now_us += elapsed_us
        tracker._step(Sample(end_us=now_us, steps=1, elapsed_us=elapsed_us), [])
        if track.episode is not None:
            alarms, track.episode = alarms + 1, None
    assert alarms <= 1
    assert track.baseline.level_us == pytest.approx(500_000, rel=0.01)
