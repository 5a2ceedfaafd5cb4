"""The second step: all nodes of one job together, tick by tick, once every input partition has passed a tick."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import msgspec

from streams.contract.findings import Episode, JobState
from streams.contract.slices import JobSlice
from streams.contract.ticks import TICKS_PER_SECOND
from streams.core.settings import JudgeSettings
from streams.core.tracker import Track, Tracker

FORMAT = 1


class Waiting(msgspec.Struct, kw_only=True):
    """A job's slices that are not closed yet, and what is known of it so far."""

    slices: list[JobSlice] = []
    track: Track = msgspec.field(default_factory=Track)


class JudgeState(msgspec.Struct, kw_only=True):
    """Everything that `judge` remembers."""

    format: int = FORMAT
    progress: dict[int, int] = {}
    closed_through: int = -1
    jobs: dict[str, Waiting] = {}
    counts: dict[str, int] = {}


class Judge:
    """One partition of job-slices. A job's slices are taken in order of (last tick, node), second by second."""

    def __init__(self, settings: JudgeSettings, input_partitions: int) -> None:
        self._settings = settings
        self._inputs = input_partitions
        self._state = JudgeState()
        self._trackers: dict[str, Tracker] = {}
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """What was dropped, by reason: late_slice."""
        return dict(self._counts)

    @property
    def closed_through(self) -> int:
        """The last tick that every input partition has passed."""
        return self._state.closed_through

    def apply(self, piece: JobSlice) -> list[Episode | JobState]:
        """Take the next slice or progress; return what it lets us say."""
        if piece.progress is None:
            self._wait(piece)
            return []
        known = self._state.progress
        partition = piece.progress.input_partition
        known[partition] = max(known.get(partition, -1), piece.progress.through_tick)
        if len(known) < self._inputs:
            return []
        through = min(known.values())
        if through <= self._state.closed_through:
            return []
        self._state.closed_through = through
        out: list[Episode | JobState] = []
        for job in sorted(self._state.jobs):
            self._advance(job, through, out)
        return out

    def snapshot(self) -> bytes:
        """The whole state; `restore` goes on from it as if nothing had happened."""
        self._state.counts = dict(self._counts)
        return msgspec.msgpack.encode(self._state)

    @classmethod
    def restore(cls, settings: JudgeSettings, input_partitions: int, snapshot: bytes) -> Judge:
        """A `Judge` in the state that `snapshot` returned."""
        judge = cls(settings, input_partitions)
        judge._state = msgspec.msgpack.decode(snapshot, type=JudgeState)
        judge._counts = Counter(judge._state.counts)
        return judge

    def _wait(self, piece: JobSlice) -> None:
        if _last_tick(piece) <= self._state.closed_through:
            self._counts["late_slice"] += 1
            return
        waiting = self._state.jobs.setdefault(piece.job, Waiting())
        waiting.slices.append(piece)

    def _advance(self, job: str, through: int, out: list[Episode | JobState]) -> None:
        """Close a job's slices second by second, then the job itself if it has ended.

        `through` is always the end of a whole second, so a second's slices are all here or none is judged.
        """
        waiting = self._state.jobs[job]
        ready = [piece for piece in waiting.slices if _last_tick(piece) <= through]
        if ready:
            waiting.slices = [piece for piece in waiting.slices if _last_tick(piece) > through]
            ready.sort(key=_order)
            for second, pieces in groupby(ready, _second_of):
                tick = (second + 1) * TICKS_PER_SECOND - 1
                self._end_if_gone(waiting, job, tick, out)
                out.extend(self._tracker(job, waiting).group(tick, list(pieces)))
        self._end_if_gone(waiting, job, through, out)
        if waiting.track.tick < 0 and not waiting.slices:
            del self._state.jobs[job]

    def _tracker(self, job: str, waiting: Waiting) -> Tracker:
        tracker = self._trackers.get(job)
        if tracker is None:
            tracker = self._trackers[job] = Tracker(self._settings, waiting.track)
        return tracker

    def _end_if_gone(self, waiting: Waiting, job: str, tick: int, out: list[Episode | JobState]) -> None:
        ended = waiting.track.tick + self._settings.gone_ticks
        if waiting.track.tick >= 0 and tick > ended:
            out.extend(self._tracker(job, waiting).gone(ended))
            waiting.track = Track()
            del self._trackers[job]


def _order(piece: JobSlice) -> tuple[int, str, int]:
    return _last_tick(piece), piece.node, piece.first_tick


def _second_of(piece: JobSlice) -> int:
    return _last_tick(piece) // TICKS_PER_SECOND


def _last_tick(piece: JobSlice) -> int:
    return piece.first_tick + piece.ticks - 1
