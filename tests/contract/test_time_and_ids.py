"""Ticks are integers of 100 ms since the epoch, and identities come from content alone."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.contract.ids import charge_id, episode_id
from streams.contract.ticks import rfc3339_of_tick, rfc3339_of_us, tick_of_us, us_of_tick


@given(st.integers(0, 10**12))
def test_a_tick_begins_at_its_own_time_and_lasts_100_ms(tick: int) -> None:
    assert tick_of_us(us_of_tick(tick)) == tick
    assert tick_of_us(us_of_tick(tick) + 99_999) == tick
    assert tick_of_us(us_of_tick(tick) + 100_000) == tick + 1


@pytest.mark.parametrize(
    ("tick", "text"),
    [(0, "1970-01-01T00:00:00.000Z"), (17_900_000_003, "2026-09-21T14:13:20.300Z"), (None, None)],
)
def test_a_tick_is_told_in_utc_with_milliseconds(tick: int | None, text: str | None) -> None:
    assert rfc3339_of_tick(tick) == text


def test_microseconds_are_cut_not_rounded() -> None:
    assert rfc3339_of_us(1_999_999) == "1970-01-01T00:00:01.999Z"


def test_the_same_alarm_has_the_same_id_in_every_process_and_release() -> None:
    found = episode_id(cluster="lab", job="a/b/c", job_epoch=1, alarm_tick=17_900_000_000)
    assert found == "0743c6cb-0d99-58a5-9cab-2e104c81a2fa"


@pytest.mark.parametrize("changed", [{"cluster": "x"}, {"job": "x"}, {"job_epoch": 2}, {"alarm_tick": 5}])
def test_another_alarm_has_another_id(changed: dict[str, object]) -> None:
    base: dict[str, object] = {"cluster": "lab", "job": "a/b/c", "job_epoch": 1, "alarm_tick": 7}
    assert episode_id(**base) != episode_id(**{**base, **changed})  # type: ignore[arg-type]


def test_ids_are_version_5_uuids_and_kinds_never_meet() -> None:
    episode = uuid.UUID(episode_id(cluster="c", job="j", job_epoch=0, alarm_tick=0))
    charge = uuid.UUID(charge_id(cluster="c", job="j", minute=0, cause_pod_uid="0"))
    assert (episode.version, charge.version) == (5, 5)
    assert episode != charge
