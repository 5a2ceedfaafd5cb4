"""Runs the core over a recording: the same findings as the worker's, without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar, cast

import msgspec

from streams.contract.errors import InvalidRecordError
from streams.contract.findings import Episode, Incident, JobState
from streams.contract.plumbing import DeadLetter
from streams.core.core import Core, CoreSettings
from streams.dead_letters import dead_letter
from streams.recording import Recorded, RunInfo, read_recording, read_state, run_info

Finding = TypeVar("Finding", Episode, Incident, JobState)

PROGRESS_EVERY = 200  # Records between two words about progress


class WholeCore(Protocol):
    """The three steps in one."""

    def apply(self, topic: str, partition: int, record: msgspec.Struct, /) -> Sequence[msgspec.Struct]:
        """The findings that follow from one more input record; raises InvalidRecordError."""
        ...


@dataclass(slots=True, kw_only=True)
class ReplayResult:
    """The last revision of every finding, and what was read."""

    run: RunInfo
    cold_start: bool = True
    records: int = 0
    incidents: dict[str, Incident] = field(default_factory=dict)
    episodes: dict[str, Episode] = field(default_factory=dict)
    job_states: dict[str, JobState] = field(default_factory=dict)  # The newest of each job
    dead_letters: list[DeadLetter] = field(default_factory=list)
    core_counts: dict[str, int] = field(default_factory=dict)  # What the core dropped or forced, by reason

    def take(self, finding: msgspec.Struct) -> None:
        """Keep a finding unless a later revision is there already."""
        match finding:
            case Incident():
                _keep(self.incidents, finding.incident_id, finding, lambda kept: kept.revision)
            case Episode():
                _keep(self.episodes, finding.episode_id, finding, lambda kept: kept.revision)
            case JobState():
                _keep(self.job_states, finding.job, finding, lambda kept: kept.tick)

    def incidents_by_onset(self) -> list[Incident]:
        """Incidents that still stand (not merged into another), oldest first."""
        standing = [incident for incident in self.incidents.values() if incident.merged_into is None]
        return sorted(standing, key=lambda incident: (incident.onset_tick, incident.incident_id))


def replay(
    path: Path, settings: CoreSettings, *, on_progress: Callable[[int, int], None] | None = None
) -> ReplayResult:
    """Run the core over a recording, from its saved state or cold; the partitions' interleaving is of no account.

    `on_progress` hears (records applied, records in all) now and then. Raises RecordingError.
    """
    run, state = run_info(path), read_state(path)
    core = Core(settings, run.partitions) if state is None else Core.restore(settings, state)
    result = ReplayResult(run=run, cold_start=state is None)
    total = sum(run.records.values())
    recorded = read_recording(path)
    apply_all(recorded, cast(WholeCore, core), result, lambda done: on_progress(done, total) if on_progress else None)
    result.core_counts = core.counts
    return result


def apply_all(
    recorded: Iterable[Recorded],
    core: WholeCore,
    result: ReplayResult,
    on_record: Callable[[int], None] = lambda _: None,
) -> None:
    """Apply messages to a core, keeping what comes out in `result`; what is no record becomes a dead letter there."""
    for item in recorded:
        result.records += 1
        if result.records % PROGRESS_EVERY == 0:
            on_record(result.records)
        if item.record is None:
            result.dead_letters.append(dead_letter(item.message, item.refusal, component="replay"))
            continue
        try:
            findings = core.apply(item.message.topic, item.message.partition, item.record)
        except InvalidRecordError as error:
            result.dead_letters.append(dead_letter(item.message, str(error), component="replay"))
            continue
        for finding in findings:
            result.take(finding)


def _keep(kept: dict[str, Finding], key: str, new: Finding, order: Callable[[Finding], int]) -> None:
    if key not in kept or order(new) >= order(kept[key]):
        kept[key] = new
