"""One job followed through its slices: steps, baseline, alarm, recovery, health."""

from __future__ import annotations

import msgspec

from streams.contract.findings import Episode, Health, JobState, Verdict
from streams.contract.header import Source
from streams.contract.rosters import roster_of
from streams.contract.slices import JobSlice, SliceRoster
from streams.contract.ticks import TICK_US
from streams.core.baseline import Baseline, add_quiet, start_again
from streams.core.change import SMALLEST_PART, cusum, split, stands_out
from streams.core.episode import (
    Open,
    add_slow,
    baseline_copy,
    bracket,
    drop_slow_after,
    end_without_recovery,
    gpus_of,
    slowed_us,
    source_of,
    tell,
    unchanged,
    withdraw,
)
from streams.core.history import History
from streams.core.iterations import (
    Roster,
    Sample,
    Steps,
    anchor_lost,
    choose_anchor,
    job_steps,
    lead_silent,
    replace_lead,
    take,
)
from streams.core.settings import JudgeSettings
from streams.core.verdict import Decision, decide

LEARN_EVERY_TICKS = 10
LOOK_EVERY_TICKS = 25  # An open episode is weighed again at most this often
KEPT_RECENT = 400  # Steps: enough to compare bytes over the quiet time before an onset
BYTES_TOLERANCE = 0.02  # A job that hands over this much more or less per step does other work
LOST_ANCHOR_STEPS = 20
LOST_ANCHOR_US = 10_000_000
TOO_SMALL_STEPS = 200  # A shift below the minimum effect that lasts this long is how the job runs now
MEMORY_OF_NODE_TICKS = 600  # A node that left the job is no longer told as its node after a minute


class Track(msgspec.Struct, kw_only=True):
    """Everything that is remembered of one job."""

    job: str = ""
    tick: int = -1
    epoch: int = 0
    told_tick: int = -1
    told_health: Health = Health.UNKNOWN
    learned_tick: int = -1
    steps: Steps = msgspec.field(default_factory=Steps)
    baseline: Baseline = msgspec.field(default_factory=Baseline)
    alarm_total: float = 0.0
    fast_total: float = 0.0
    undecided: list[int] = []  # Durations since the alarm's sum left zero: quiet if it returns there
    newest_us: int | None = None
    recent: list[Sample] = []  # Steps outside episodes
    slow_spans: list[tuple[int, int]] = []  # First and last tick of earlier episodes that the history still holds
    histories: dict[str, History] = {}
    latest: dict[str, JobSlice] = {}
    silent_since: dict[str, int] = {}
    episode: Open | None = None


class Tracker:
    """Follows one job; all its memory is the `Track` that it was given."""

    def __init__(self, settings: JudgeSettings, track: Track) -> None:
        self._settings = settings
        self._track = track
        self._rosters: dict[str, Roster] = {}

    def group(self, tick: int, pieces: list[JobSlice]) -> list[Episode | JobState]:
        """Take all slices of the job that end in the second before `tick`; return what has become known."""
        track = self._track
        track.tick, track.job = tick, pieces[0].job
        out: list[Episode | JobState] = []
        for piece in pieces:
            self._see(piece, out)
        if tick >= track.learned_tick + LEARN_EVERY_TICKS:
            track.learned_tick = tick
            self._learn(out)
            self._forget_nodes()
        for sample in job_steps(track.steps, tick):
            self._step(sample, out)
        if track.episode is not None:
            self._look(track.episode, out)
        self._tell_health(out)
        return out

    def gone(self, tick: int) -> list[Episode | JobState]:
        """No slice has come for a long time: the job has ended."""
        self._track.tick = tick
        out: list[Episode | JobState] = []
        self._end_episode(out)
        if self._track.latest:
            out.append(self._state(Health.NOT_OBSERVED, "the job has ended: no node tells of it any more"))
        return out

    def _see(self, piece: JobSlice, out: list[Episode | JobState]) -> None:
        track = self._track
        if piece.nic_silent:
            track.silent_since.setdefault(piece.node, piece.first_tick)
            if track.steps.lead.startswith(f"{piece.node}|"):
                lead_silent(track.steps)
            return
        track.silent_since.pop(piece.node, None)
        if self._restarted(piece):
            self._lead_gone(out)
        track.latest[piece.node] = piece
        history = track.histories.setdefault(piece.node, History())
        history.add(piece, keep_ticks=self._settings.history_ticks)
        self._rosters[piece.node] = take(track.steps, piece, self._rosters.get(piece.node))

    def _learn(self, out: list[Episode | JobState]) -> None:
        """Look for the anchor, or find that the program does not call it any more."""
        steps = self._track.steps
        if steps.anchor is None:
            choose_anchor(steps)
        elif anchor_lost(steps, patience_us=max(LOST_ANCHOR_US, LOST_ANCHOR_STEPS * self._track.baseline.level_us)):
            self._new_epoch(out)

    def _forget_nodes(self) -> None:
        track = self._track
        for node, latest in list(track.latest.items()):
            if latest.first_tick < track.tick - MEMORY_OF_NODE_TICKS:
                del track.latest[node], track.histories[node]
                self._rosters.pop(node, None)

    def _restarted(self, piece: JobSlice) -> bool:
        """True where the lead's node tells of ranks, and the lead is not among them."""
        steps = self._track.steps
        if steps.anchor is None or not steps.lead.startswith(f"{piece.node}|"):
            return False
        known = self._rosters.get(piece.node)
        if known is not None and known.lead == steps.lead and known.raw == piece.roster:
            return bool(known.keys) and not known.has_lead
        pid, communicators = steps.ranks[steps.lead].pid, roster_of(piece.roster).communicators
        return bool(communicators) and all(member.pid != pid for member in communicators)

    def _lead_gone(self, out: list[Episode | JobState]) -> None:
        if not replace_lead(self._track.steps, self._track.steps.lead):
            self._new_epoch(out)

    def _new_epoch(self, out: list[Episode | JobState]) -> None:
        """Other ranks or other work: what was normal before says nothing now."""
        self._end_episode(out)
        track = self._track
        track.epoch += 1
        track.steps = Steps()
        self._rosters.clear()
        track.baseline = Baseline()
        track.alarm_total, track.fast_total, track.undecided, track.recent = 0.0, 0.0, [], []

    def _end_episode(self, out: list[Episode | JobState]) -> None:
        episode, self._track.episode = self._track.episode, None
        if episode is not None and (told := end_without_recovery(episode, self._track.tick)) is not None:
            out.append(told)

    def _step(self, sample: Sample, out: list[Episode | JobState]) -> None:
        track, settings = self._track, self._settings
        track.newest_us = sample.step_us
        if track.episode is not None and track.episode.recovered_us is None:
            add_slow(track.episode, sample)
            self._watch_recovery(track.episode, sample)
            return
        track.recent.append(sample)
        del track.recent[:-KEPT_RECENT]
        baseline = track.baseline
        if not baseline.known:
            add_quiet(baseline, sample.step_us, settings)
            return
        z = (sample.step_us - baseline.level_us) / baseline.scale_us
        track.alarm_total = cusum(track.alarm_total, z, k=settings.cusum_k, clip=settings.z_clip)
        track.fast_total = cusum(track.fast_total, -z, k=settings.cusum_k, clip=settings.z_clip)
        if track.fast_total >= settings.cusum_h:
            self._faster()
        track.undecided.append(sample.step_us)
        if track.alarm_total == 0 or len(track.undecided) > TOO_SMALL_STEPS:
            self._were_quiet(len(track.undecided))
        elif track.alarm_total >= settings.cusum_h and len(track.undecided) >= settings.minimum_slow:
            self._alarm(out)

    def _were_quiet(self, count: int) -> None:
        """The oldest undecided steps belonged to no slowdown. All of them count: leaving out the slower half of the
        noise would make the baseline faster than the job ever was."""
        track = self._track
        for step_us in track.undecided[:count]:
            add_quiet(track.baseline, step_us, self._settings)
        track.undecided, track.alarm_total = [], 0.0

    def _faster(self) -> None:
        """A job that has become faster is compared with its new pace as soon as enough steps show it."""
        track, settings = self._track, self._settings
        samples = track.recent[-settings.split_window :]
        fast = [sample.step_us for sample in samples[split([sample.step_us for sample in samples]) :]]
        twice, quiet = 2 * track.baseline.level_us, track.baseline.quiet
        mirrored = [twice - step_us for step_us in fast], [twice - step_us for step_us in quiet]
        enough = len(fast) >= settings.baseline_iterations
        if enough and stands_out(*mirrored, track.baseline.level_us, minimum_e4=settings.minimum_effect_e4):
            start_again(track.baseline, fast)
            track.fast_total = 0.0
        track.fast_total = min(track.fast_total, settings.cusum_h)

    def _alarm(self, out: list[Episode | JobState]) -> None:
        track, settings = self._track, self._settings
        samples = track.recent[-settings.split_window :]
        first = split([sample.step_us for sample in samples])
        slow = samples[first:]
        level, scale, steps = baseline_copy(track.baseline)
        durations = [sample.step_us for sample in slow]
        if not stands_out(durations, track.baseline.quiet, level, minimum_e4=settings.minimum_effect_e4):
            track.alarm_total = min(track.alarm_total, settings.cusum_h)  # Wait for more, or for the sum to fall
            return
        self._were_quiet(max(len(track.undecided) - len(slow), 0))
        if track.episode is not None:
            self._close(track.episode, out)
        track.recent = [sample for sample in track.recent if sample.end_us <= slow[0].start_us]
        oldest_us = slow[0].start_us - settings.history_ticks * TICK_US
        quiet = _last_ticks([s for s in track.recent if s.start_us >= oldest_us], settings.quiet_ticks)
        episode = Open(
            alarm_tick=track.tick,
            job_epoch=track.epoch,
            baseline_us=level,
            scale_us=scale,
            baseline_steps=steps,
            quiet=quiet,
            slow=[],
        )
        for sample in slow:
            add_slow(episode, sample)
        if self._other_work(episode):
            self._new_epoch(out)
            return
        track.episode = episode

    def _other_work(self, episode: Open) -> bool:
        """True where the job hands clearly more or fewer bytes to NCCL per step than in its quiet time.

        Bytes are counted per flush, so each end of a stretch is uncertain by a step and by what fits into a flush.
        """
        quiet, slow = episode.quiet, episode.slow
        if len(quiet) < SMALLEST_PART or len(slow) < SMALLEST_PART:
            return False
        before, after = _bytes_per_step(quiet), _bytes_per_step(slow)
        if before <= 0:
            return False
        fewest = min(sum(s.steps for s in quiet), sum(s.steps for s in slow))
        per_flush = 1 + 10 * TICK_US / episode.baseline_us
        return abs(after - before) > before * (BYTES_TOLERANCE + 2 * per_flush / max(fewest, 1))

    def _watch_recovery(self, episode: Open, sample: Sample) -> None:
        settings = self._settings
        level = episode.baseline_us
        slow_level = max(slowed_us(episode), level + 1)
        middle = (level + slow_level) / 2
        scale = max(episode.scale_us, (slow_level - level) / 8)
        z = (middle - sample.step_us) / scale
        episode.recovery_total = cusum(episode.recovery_total, z, k=settings.cusum_k, clip=settings.z_clip)
        if episode.recovery_total < settings.cusum_h:
            return
        tail = episode.slow[-settings.split_window :]
        first = max(split([entry.step_us for entry in tail]), 1 if len(tail) == len(episode.slow) else 0)
        if first == 0:
            return
        recovered_us = tail[first - 1].end_us
        episode.recovered_us = recovered_us
        episode.clean = drop_slow_after(episode, recovered_us)
        first_clean = episode.clean[0]
        episode.first_clean_end_us = first_clean.end_us
        wait_us = max(2 * level, settings.edge_slack_ticks * TICK_US) + level
        episode.due_tick = (first_clean.end_us + wait_us) // TICK_US + settings.edge_slack_ticks

    def _look(self, episode: Open, out: list[Episode | JobState]) -> None:
        """Weigh an open episode again when it is time, and tell it when it has changed or is due."""
        track, settings = self._track, self._settings
        if episode.recovered_us is not None:
            if episode.due_tick is not None and track.tick >= episode.due_tick:
                self._close(episode, out)
            return
        due = track.tick >= episode.told_tick + settings.revise_ticks
        if episode.told is not None and not due and track.tick < episode.looked_tick + LOOK_EVERY_TICKS:
            return
        episode.looked_tick = track.tick
        if self._other_work(episode):
            if (
                told := withdraw(episode, track.tick, "the job hands other amounts to NCCL: it does other work")
            ) is not None:
                out.append(told)
            track.episode = None
            self._new_epoch(out)
            return
        decision = self._decide(episode)
        if due or not unchanged(episode, decision):
            out.append(tell(episode, decision, track.latest, self._not_observed(), track.tick, track.job))
        else:
            episode.frozen = decision.frozen

    def _close(self, episode: Open, out: list[Episode | JobState]) -> None:
        decision = self._decide(episode)
        out.append(tell(episode, decision, self._track.latest, self._not_observed(), self._track.tick, self._track.job))
        track = self._track
        for sample in episode.clean:
            add_quiet(track.baseline, sample.step_us, self._settings)
        since = [sample for sample in track.recent if sample.end_us > episode.slow[-1].end_us]
        before = [sample for sample in track.recent if sample.end_us <= episode.slow[0].start_us]
        track.recent = [*before, *episode.clean, *since]
        first, last = episode.slow[0].start_us // TICK_US, episode.slow[-1].end_us // TICK_US
        oldest = track.tick - self._settings.history_ticks
        track.slow_spans = [*((a, b) for a, b in track.slow_spans if b >= oldest), (first, last)]
        if self._track.episode is episode:
            self._track.episode = None

    def _decide(self, episode: Open) -> Decision:
        track = self._track
        return decide(
            track.histories,
            {node: roster_of(piece.roster).bytes_rung for node, piece in track.latest.items()},
            bracket(episode, track.tick, self._settings),
            quiet=episode.quiet,
            slow=episode.slow,
            frozen=episode.frozen,
            slow_spans=track.slow_spans,
            settings=self._settings,
        )

    def _not_observed(self) -> list[str]:
        """What could not be seen on the job's nodes, one line each."""
        track = self._track
        lines = {f"node {node} is silent" for node in track.silent_since}
        for node, piece in track.latest.items():
            if piece.nccl_silent:
                lines.add(f"no NCCL calls from node {node}")
            lines.update(f"no {gap.what} on node {node}: {gap.reason}" for gap in roster_of(piece.roster).gaps)
        return sorted(lines)

    def _tell_health(self, out: list[Episode | JobState]) -> None:
        track = self._track
        health = self._health()
        if health is not track.told_health or track.tick >= track.told_tick + self._settings.state_ticks:
            out.append(self._state(health, self._why(health)))

    def _health(self) -> Health:
        track = self._track
        if track.episode is not None and track.episode.recovered_us is None:
            return Health.SLOW
        if not track.latest or not track.steps.ranks:
            return Health.NOT_OBSERVED
        return Health.HEALTHY if track.baseline.known else Health.NO_BASELINE

    def _why(self, health: Health) -> str:
        track = self._track
        if health is Health.SLOW and (episode := track.episode) is not None:
            verdict = episode.told.verdict if episode.told is not None else Verdict.UNKNOWN
            return f"steps take {slowed_us(episode)} us instead of {episode.baseline_us} us: {verdict}"
        if health is Health.NOT_OBSERVED:
            return "no NCCL call has been seen" if track.latest else "its nodes are silent"
        if health is Health.HEALTHY:
            return f"steps take {track.baseline.level_us} us"
        if track.steps.anchor is None:
            return "no call has recurred evenly so far"
        return f"{len(track.baseline.quiet)} quiet steps so far"

    def _state(self, health: Health, why: str) -> JobState:
        track = self._track
        track.told_health, track.told_tick = health, track.tick
        first = track.latest[min(track.latest)] if track.latest else None
        roster = roster_of(first.roster) if first is not None else SliceRoster()
        return JobState(
            cluster=first.cluster if first is not None else "",
            job=track.job,
            job_name=roster.job_name,
            job_epoch=track.epoch,
            tenant=roster.tenant,
            source=source_of(track.latest) if first is not None else Source.UNKNOWN,
            tick=track.tick,
            health=health,
            why=why,
            nodes=sorted(track.latest),
            ports=sorted(
                f"{node}/{port.device}/{port.port}"
                for node, piece in track.latest.items()
                for port in roster_of(piece.roster).ports
                if port.used
            ),
            gpus=gpus_of(track.latest),
            iteration_us=track.newest_us,
            baseline_us=track.baseline.level_us or None,
            episode_id=track.episode.told.episode_id if track.episode and track.episode.told else None,
        )


def _bytes_per_step(samples: list[Sample]) -> float:
    return sum(sample.nccl_bytes for sample in samples) / sum(sample.steps for sample in samples)


def _last_ticks(samples: list[Sample], ticks: int) -> list[Sample]:
    """The latest samples that add up to a number of ticks."""
    left_us = ticks * TICK_US
    chosen: list[Sample] = []
    for sample in reversed(samples):
        left_us -= sample.elapsed_us
        if left_us < 0 and len(chosen) >= SMALLEST_PART:
            break
        chosen.append(sample)
    return chosen[::-1]
