"""One job followed through its slices: iterations, baseline, episodes, health."""

from __future__ import annotations

import msgspec

from streams.contract.findings import Episode, Health, JobState
from streams.contract.header import Source
from streams.contract.slices import JobSlice
from streams.core.settings import JudgeSettings


class Track(msgspec.Struct, kw_only=True):
    """What is remembered of one job."""

    tick: int = -1
    told_tick: int = -1
    about: JobSlice | None = None


class Tracker:
    """Follows one job; its state is the `Track` that it was given."""

    def __init__(self, settings: JudgeSettings, track: Track) -> None:
        self._settings = settings
        self._track = track

    def group(self, tick: int, pieces: list[JobSlice]) -> list[Episode | JobState]:
        """Take all slices of the job that end at `tick`."""
        self._track.tick = tick
        self._track.about = pieces[0]
        if tick - self._track.told_tick < self._settings.state_ticks:
            return []
        self._track.told_tick = tick
        return [self._state(Health.NO_BASELINE, "too few iterations seen")]

    def gone(self, tick: int) -> list[Episode | JobState]:
        """The job has sent nothing for a long time: it has ended."""
        self._track.tick = tick
        return [self._state(Health.NOT_OBSERVED, "no slices any more: the job has ended")]

    def _state(self, health: Health, why: str) -> JobState:
        about = self._track.about
        return JobState(
            cluster=about.cluster if about is not None else "",
            job=about.job if about is not None else "",
            job_epoch=0,
            source=about.source if about is not None else Source.UNKNOWN,
            tick=self._track.tick,
            health=health,
            why=why,
        )
