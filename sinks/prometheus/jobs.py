"""Jobs as samples: health, iteration time, and what they lose now."""

from __future__ import annotations

from collections.abc import Iterator

from sinks.prometheus.declared import JOB_BASELINE, JOB_GPUS, JOB_HEALTH, JOB_ITERATION, JOB_LOSS, Sample
from streams.contract.findings import Episode, Health, JobState
from streams.contract.ticks import us_of_tick

FORGET_US = 120 * 1_000_000  # A job is told every 5 s; a worker's restart takes less than a minute
_US = 1_000_000
_WHOLE_E4 = 10_000


class Jobs:
    """The latest state of each job that is still told of, and the latest revision of each episode that is open."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str], JobState] = {}
        self._episodes: dict[str, Episode] = {}

    def take_state(self, state: JobState) -> None:
        """Take a job's state; an older one than is known changes nothing."""
        key = (state.cluster, state.job)
        known = self._states.get(key)
        if known is None or known.tick <= state.tick:
            self._states[key] = state

    def take_episode(self, episode: Episode) -> None:
        """Take an episode's revision; an older one than is known changes nothing."""
        known = self._episodes.get(episode.episode_id)
        if known is None or known.revision < episode.revision:
            self._episodes[episode.episode_id] = episode

    def forget(self, now_us: int) -> None:
        """Let go of what is not told any more."""
        oldest_us = now_us - FORGET_US
        self._states = {key: state for key, state in self._states.items() if us_of_tick(state.tick) >= oldest_us}
        self._episodes = {
            key: episode for key, episode in self._episodes.items() if us_of_tick(episode.as_of_tick) >= oldest_us
        }

    def samples(self, now_us: int) -> Iterator[Sample]:
        """The gauges as they stand."""
        for state in self._states.values():
            if us_of_tick(state.tick) >= now_us - FORGET_US:
                yield from self._of(state)

    def _of(self, state: JobState) -> Iterator[Sample]:
        labels = (state.cluster, state.job, state.tenant or "", str(state.source))
        yield Sample(JOB_HEALTH, (*labels, str(state.health)), 1)
        if (loss := self._loss(state)) is not None:
            yield Sample(JOB_LOSS, labels, loss)
        if state.iteration_us is not None:
            yield Sample(JOB_ITERATION, labels, state.iteration_us / _US)
        if state.baseline_us is not None:
            yield Sample(JOB_BASELINE, labels, state.baseline_us / _US)
        if state.gpus is not None:
            yield Sample(JOB_GPUS, labels, state.gpus)

    def _loss(self, state: JobState) -> float | None:
        if state.health is Health.HEALTHY:
            return 0.0
        episode = self._episodes.get(state.episode_id or "")
        return None if state.health is not Health.SLOW or episode is None else episode.loss_e4 / _WHOLE_E4
