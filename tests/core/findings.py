"""Runs the core over records and keeps what the product keeps: the last revision of each finding."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from streams.contract.findings import Episode, Incident, JobState
from streams.core.core import Core, CoreSettings
from tests.core.scene import Record, Scene


class Kept:
    """The last revision of each episode and incident, and each job's last state."""

    def __init__(self) -> None:
        self.episodes: dict[str, Episode] = {}
        self.incidents: dict[str, Incident] = {}
        self.states: dict[str, JobState] = {}
        self.revisions: list[Episode] = []

    def take(self, finding: Episode | Incident | JobState) -> None:
        if isinstance(finding, Episode):
            self.episodes[finding.episode_id] = finding
            self.revisions.append(finding)
        elif isinstance(finding, Incident):
            self.incidents[finding.incident_id] = finding
        else:
            self.states[finding.job] = finding

    def encoded(self) -> bytes:
        """Byte-comparable form of everything kept."""
        return msgspec.msgpack.encode([sorted_values(self.episodes), sorted_values(self.incidents)])

    def standing(self) -> list[Incident]:
        """Incidents that were not merged into another one, oldest first."""
        found = [incident for incident in self.incidents.values() if incident.merged_into is None]
        return sorted(found, key=lambda incident: (incident.onset_tick, incident.incident_id))


def sorted_values(kept: dict[str, Episode] | dict[str, Incident]) -> list[Episode | Incident]:
    return [kept[key] for key in sorted(kept)]


def run(scene: Scene, *, settings: CoreSettings | None = None) -> Kept:
    """Findings of a scene in the order in which it was written."""
    return apply(scene.in_time_order(), scene.partitions, settings=settings or CoreSettings())


def apply(
    records: Iterable[tuple[str, int, Record]],
    partitions: int,
    *,
    settings: CoreSettings | None = None,
    restore_at: frozenset[int] = frozenset(),
) -> Kept:
    """Findings of records in a given order; before each index in `restore_at` the core is saved and restored."""
    settings = settings or CoreSettings()
    core, kept = Core(settings, partitions), Kept()
    for index, (topic, partition, record) in enumerate(records):
        if index in restore_at:
            core = Core.restore(settings, core.snapshot())
        for finding in core.apply(topic, partition, record):
            kept.take(finding)
    return kept
