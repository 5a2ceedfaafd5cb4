"""One slowdown of one job from its alarm on: its slow steps, its bracket in time, its loss, and how it is told."""

from __future__ import annotations

import msgspec
import numpy as np

from streams.contract.findings import Cause, Episode, EpisodePod, Recovery, Verdict
from streams.contract.header import Source
from streams.contract.ids import episode_id
from streams.contract.rosters import roster_of
from streams.contract.slices import JobSlice
from streams.contract.ticks import TICK_US
from streams.core.baseline import MAD_TO_SIGMA, Baseline
from streams.core.iterations import Sample
from streams.core.settings import JudgeSettings
from streams.core.suspects import Before, Bracket
from streams.core.verdict import Decision

KEPT_SLOW = 512  # Steps whose spread makes the interval; sums go on
FEWEST_INNER = 5  # From here on the first and last slow step, which are only partly slow, are left out of the loss
TWO_SIGMA = 2.0


class Open(msgspec.Struct, kw_only=True):
    """An episode that is going on, or waits a few steps after recovery for its proof."""

    alarm_tick: int
    job_epoch: int
    baseline_us: int
    scale_us: float
    baseline_steps: int
    quiet: list[Sample]  # Steps before the onset, for the comparison of bytes
    slow: list[Sample]
    dropped_steps: int = 0
    dropped_us: int = 0
    lost_us: int = 0
    recovery_total: float = 0.0
    clean: list[Sample] = []  # Steps after the recovery, once it is dated
    recovered_us: int | None = None
    first_clean_end_us: int = 0
    due_tick: int | None = None  # When the proof after recovery can be weighed
    revision: int = 0
    told_tick: int = -1
    looked_tick: int = -1
    first_said: dict[str, int] = {}  # Verdict -> tick
    frozen: dict[str, Before] = {}
    told: Episode | None = None


def add_slow(episode: Open, sample: Sample) -> None:
    """Count one slow step."""
    episode.slow.append(sample)
    episode.lost_us += max(0, sample.elapsed_us - sample.steps * episode.baseline_us)
    while len(episode.slow) > KEPT_SLOW:
        oldest = episode.slow.pop(1)  # The first stays: it dates the onset
        episode.dropped_steps += oldest.steps
        episode.dropped_us += oldest.elapsed_us


def drop_slow_after(episode: Open, end_us: int) -> list[Sample]:
    """Take back steps after the recovery: they were not slow."""
    clean = [sample for sample in episode.slow if sample.end_us > end_us]
    episode.slow = [sample for sample in episode.slow if sample.end_us <= end_us]
    for sample in clean:
        episode.lost_us -= max(0, sample.elapsed_us - sample.steps * episode.baseline_us)
    return clean


def slowed_us(episode: Open) -> int:
    """Mean duration of the slow steps."""
    inner = _inner(episode)
    steps = sum(sample.steps for sample in inner) + episode.dropped_steps
    return (sum(sample.elapsed_us for sample in inner) + episode.dropped_us) // max(steps, 1)


def bracket(episode: Open, now_tick: int, settings: JudgeSettings) -> Bracket:
    """Between which ticks a cause must have started and stopped, from the steps around onset and recovery."""
    first = episode.slow[0]
    start, quiet_us, slow_us = first.start_us, episode.baseline_us, slowed_us(episode)
    fully_slow = first.step_us - quiet_us >= (slow_us - quiet_us) // 2
    latest_us = start + quiet_us if fully_slow else first.end_us
    early_us = max(settings.ramp_ticks * TICK_US, quiet_us)
    tail_us = max(settings.ramp_ticks * TICK_US, 3 * slow_us)
    last_slow_us = episode.slow[-1].end_us if episode.recovered_us is None else episode.recovered_us
    still_us = now_tick * TICK_US if episode.recovered_us is None else last_slow_us
    fall_to = None
    if episode.recovered_us is not None:
        slack_us = max(settings.edge_slack_ticks * TICK_US, 2 * quiet_us)
        fall_to = (episode.first_clean_end_us + slack_us) // TICK_US
    return Bracket(
        onset_tick=start // TICK_US,
        rise_from=(start - early_us) // TICK_US,
        rise_to=latest_us // TICK_US + settings.edge_slack_ticks,
        now_tick=now_tick,
        still_slow_from=(still_us - tail_us) // TICK_US,
        fall_to=fall_to,
        recovered_tick=None if episode.recovered_us is None else episode.recovered_us // TICK_US,
    )


def tell(
    episode: Open, decision: Decision, latest: dict[str, JobSlice], not_observed: list[str], tick: int, job: str
) -> Episode:
    """The next revision."""
    episode.revision += 1
    episode.told_tick = tick
    episode.frozen = decision.frozen
    decided = episode.first_said.setdefault(decision.verdict.value, tick)
    slices = [latest[node] for node in sorted(latest)]
    first, rosters = slices[0], [roster_of(piece.roster) for piece in slices]
    gpus = gpus_of(latest)
    mean_us = slowed_us(episode)
    low, high = _interval(episode, mean_us)
    onset, recovered = _dated(episode, decision)
    priced = next((roster for roster in rosters if roster.gpu_hour_price_micros is not None), rosters[0])
    told = Episode(
        episode_id=episode_id(
            cluster=first.cluster, job=job, job_epoch=episode.job_epoch, alarm_tick=episode.alarm_tick
        ),
        revision=episode.revision,
        cluster=first.cluster,
        job=job,
        job_name=rosters[0].job_name,
        job_epoch=episode.job_epoch,
        tenant=rosters[0].tenant,
        source=source_of(latest),
        verdict=decision.verdict,
        kind=decision.kind,
        alarm_tick=episode.alarm_tick,
        onset_tick=onset,
        recovered_tick=recovered,
        decided_tick=decided,
        as_of_tick=tick,
        baseline_us=episode.baseline_us,
        slowed_us=mean_us,
        iterations=sum(sample.steps for sample in episode.slow) + episode.dropped_steps,
        loss_e4=_loss_e4(episode.baseline_us, mean_us),
        loss_low_e4=low,
        loss_high_e4=high,
        timing_source="simulated" if rosters[0].source is Source.SIMULATED else "enqueue",
        nodes=sorted(latest),
        pods=pods_of(latest),
        gpus=gpus,
        gpu_ms_lost=None if gpus is None else gpus * max(episode.lost_us, 0) // 1000,
        gpu_hour_price_micros=priced.gpu_hour_price_micros,
        currency=priced.currency,
        price_source=priced.price_source,
        causes=_capped(decision.causes),
        ruled_out=decision.ruled_out,
        rung=decision.rung,
        link_port=decision.link_port,
        recovery=Recovery(link=decision.link_up_tick, workload=recovered),
        not_observed=sorted({*decision.not_observed, *not_observed}),
    )
    episode.told = told
    return told


def end_without_recovery(episode: Open, tick: int) -> Episode | None:
    """The job ended or changed while it was slow: what was suspected stays suspected, and the episode is closed."""
    if episode.told is None:
        return None
    episode.revision += 1
    return msgspec.structs.replace(episode.told, revision=episode.revision, recovered_tick=tick, as_of_tick=tick)


def withdraw(episode: Open, tick: int, why: str) -> Episode | None:
    """It was no slowdown after all."""
    if episode.told is None:
        return None
    episode.revision += 1
    return msgspec.structs.replace(
        episode.told,
        revision=episode.revision,
        verdict=Verdict.WITHDRAWN,
        causes=[],
        recovered_tick=tick,
        decided_tick=tick,
        as_of_tick=tick,
        gpu_ms_lost=0 if episode.told.gpus is not None else None,
        loss_e4=0,
        loss_low_e4=0,
        loss_high_e4=0,
        not_observed=[*episode.told.not_observed, why],
    )


def gpus_of(latest: dict[str, JobSlice]) -> int | None:
    """The job's GPUs: as its owner states them, else the sum of its pods; None where any is unknown."""
    for node in sorted(latest):
        if (stated := roster_of(latest[node].roster).gpus_total) is not None:
            return stated
    pods = [pod for piece in latest.values() for pod in roster_of(piece.roster).pods]
    total = 0
    for pod in pods:
        if pod.gpus is None:
            return None
        total += pod.gpus
    return total if pods else None


def pods_of(latest: dict[str, JobSlice]) -> list[EpisodePod]:
    """The job's pods on all its nodes."""
    return [
        EpisodePod(pod_uid=pod.pod_uid, namespace=pod.namespace, name=pod.name, node=node)
        for node in sorted(latest)
        for pod in roster_of(latest[node].roster).pods
    ]


def source_of(latest: dict[str, JobSlice]) -> Source:
    """Simulated as soon as any part is."""
    sources = {node: roster_of(piece.roster).source for node, piece in latest.items()}
    return Source.SIMULATED if Source.SIMULATED in sources.values() else sources[min(sources)]


def unchanged(episode: Open, decision: Decision) -> bool:
    """True where a decision says what was told last."""
    told = episode.told
    return (
        told is not None
        and told.verdict is decision.verdict
        and told.kind is decision.kind
        and [(c.node, c.holder) for c in told.causes] == [(c.node, c.holder) for c in decision.causes]
        and told.link_port == decision.link_port
    )


def baseline_copy(baseline: Baseline) -> tuple[int, float, int]:
    """Level, scale and number of steps, as an episode freezes them."""
    return baseline.level_us, baseline.scale_us, len(baseline.quiet)


def _inner(episode: Open) -> list[Sample]:
    enough = len(episode.slow) >= FEWEST_INNER
    last = -1 if enough and episode.recovered_us is not None else None
    return episode.slow[1:last] if enough else episode.slow


def _loss_e4(baseline_us: float, mean_us: float) -> int:
    return max(0, round(10_000 * (1 - baseline_us / mean_us))) if mean_us > 0 else 0


def _interval(episode: Open, mean_us: int) -> tuple[int, int]:
    """Two standard errors of both means, from their MADs."""
    values = np.array([sample.step_us for sample in _inner(episode)], np.float64)
    spread = MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))
    slow_error = TWO_SIGMA * spread / len(values) ** 0.5
    quiet_error = TWO_SIGMA * episode.scale_us / max(episode.baseline_steps, 1) ** 0.5
    low = _loss_e4(episode.baseline_us + quiet_error, mean_us - slow_error)
    high = _loss_e4(episode.baseline_us - quiet_error, mean_us + slow_error)
    middle = _loss_e4(episode.baseline_us, mean_us)
    return min(low, middle), max(high, middle)


def _dated(episode: Open, decision: Decision) -> tuple[int, int | None]:
    """Onset and recovery: the cause's own edges where there is one (they are ten times sharper), else the steps'."""
    first = episode.slow[0]
    onset = first.start_us // TICK_US
    recovered = None if episode.recovered_us is None else episode.recovered_us // TICK_US
    if decision.rise_tick is not None:
        onset = min(max(decision.rise_tick, onset), first.end_us // TICK_US)
    if recovered is not None and decision.fall_tick is not None:
        last_start = episode.slow[-1].start_us // TICK_US
        recovered = min(max(decision.fall_tick, last_start), episode.first_clean_end_us // TICK_US)
    return onset, recovered


def _capped(causes: list[Cause]) -> list[Cause]:
    return causes[:8]
