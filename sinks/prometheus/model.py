"""Findings and reports in, samples out: the whole of what the exporter knows, without a clock and without Kafka."""

from __future__ import annotations

from collections import Counter

import msgspec

from sinks.prometheus.components import Components
from sinks.prometheus.declared import CAUGHT_UP, COMPONENT, DEAD_LETTERS, DROPPED_SERIES, Declared, Sample
from sinks.prometheus.incidents import Incidents
from sinks.prometheus.jobs import Jobs
from streams.contract import topics
from streams.contract.findings import Episode, Incident, JobState
from streams.contract.plumbing import DeadLetter, PipelineHealth

MOST_SERIES = 10_000  # Of one metric: job keys come from tenants' environment, so somebody can invent them at will
LABEL_LENGTH = 200
READERS = ("stream", "sink-clickhouse", COMPONENT)
READ = [topic.name for topic in topics.ALL if topic != topics.STATE]


class Model:
    """Takes records in any order that keeps one key's order, and any of them twice."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._incidents = Incidents()
        self._jobs = Jobs()
        self._components = Components()
        # From 0 on: Prometheus cannot know that a series which begins at 1 was 0 before
        self._letters = Counter({(cluster, topic, reader): 0 for topic in READ for reader in READERS})
        self._letters_through = -1

    def apply(self, offset: int, record: msgspec.Struct) -> None:
        """Take a record; `offset` is its place on its topic, each of which has one partition."""
        match record:
            case Incident():
                self._incidents.apply(record)
            case Episode():
                self._jobs.take_episode(record)
            case JobState():
                self._jobs.take_state(record)
            case PipelineHealth():
                self._components.apply(record)
            case DeadLetter() if offset > self._letters_through:
                self._letters_through = offset
                self._letters[(self._cluster, record.topic, record.component)] += 1

    def forget(self, now_us: int) -> None:
        """Let go of what has not been told for long: it is in no sample any more."""
        self._jobs.forget(now_us)
        self._components.forget(now_us)

    def samples(self, now_us: int, *, caught_up: bool) -> list[Sample]:
        """Every series, each labelled once; nothing but the fact itself while not caught up.

        Half of a counter would look to Prometheus like a restart, and all of it would be counted again.
        """
        out = [Sample(CAUGHT_UP, (), int(caught_up))]
        if not caught_up:
            return out
        told: dict[Declared, dict[tuple[str, ...], float]] = {}
        for sample in (
            *self._incidents.samples(now_us),
            *self._jobs.samples(now_us),
            *self._components.samples(now_us),
            *(Sample(DEAD_LETTERS, labels, count) for labels, count in self._letters.items()),
        ):
            labels = tuple(label[:LABEL_LENGTH] for label in sample.labels)
            told.setdefault(sample.metric, {})[labels] = sample.value
        for metric, series in told.items():
            out.extend(Sample(metric, labels, value) for labels, value in sorted(series.items())[:MOST_SERIES])
            if (dropped := len(series) - MOST_SERIES) > 0:
                out.append(Sample(DROPPED_SERIES, (metric.name,), dropped))
        return out
