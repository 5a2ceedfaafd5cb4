"""Who on the job's nodes could have done it: dose, rising edge, falling edge; and why the others did not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.contract import features
from streams.contract.slices import Suspect
from streams.core.history import HolderKey, Window
from streams.core.settings import JudgeSettings

LARGEST = float(2**62)
SMOOTH_TICKS = 5  # A centred mean crosses half height exactly at an edge, and bridges single empty ticks
MERGE_GAP_TICKS = 10  # A holder that pauses for less than a second has not stopped
FEWEST_QUIET_TICKS = 50  # Seen for less than 5 s before the onset: what it did then is not known
EARLY_TICKS = 50
NOISE_FACTOR = 5.0  # The dose must stand out of the holder's own spread

QP_CHURN, MR_CHURN = "qp_churn", "mr_churn"
BYTES = (features.TX_BYTES, features.RX_BYTES)
# The least that has been seen to hurt (detector study, section 8.6), per tick or as a level.
FLOORS = {
    features.QP_LIVE: 256.0,
    QP_CHURN: 5.0,
    MR_CHURN: 5.0,
    features.MR_LIVE_BYTES: float(2**30),
}
QP_LIVE_TIMES = 4.0  # And this many times what it had before
_CHURNS = {
    QP_CHURN: (features.QP_CREATED, features.QP_DESTROYED),
    MR_CHURN: (features.MR_REGISTERED, features.MR_DEREGISTERED),
}


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """What a holder's feature was before the onset, kept for episodes that outlive the history."""

    quiet: float
    spread: float
    active: float  # Part of the quiet time at or above half of the dose
    episode: float
    rise_tick: int | None
    fall_tick: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """When a cause must have started, and stopped."""

    onset_tick: int  # Start of the first slow step
    rise_from: int
    rise_to: int
    now_tick: int
    still_slow_from: int  # A cause that is gone since before this tick did not hold the job back until now
    fall_to: int | None = None  # None: not recovered
    recovered_tick: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One holder's feature held against the bracket; `reason` None: it passed."""

    who: Suspect
    node: str
    feature: str
    before: Before
    dose: float
    score_e4: int
    reason: str | None
    numbers: dict[str, int]

    @property
    def key(self) -> str:
        """Identity of holder, device and feature on the node."""
        return frozen_key(self.node, (self.who.holder, self.who.device), self.feature)


def whole(value: float) -> int:
    """A number for a finding; what hardware or a tenant blew up stays within an Avro long."""
    return round(max(-LARGEST, min(LARGEST, value)))


def frozen_key(node: str, holder: HolderKey, feature: str) -> str:
    """The key under which `Before` is kept."""
    return f"{node}|{holder[0]}|{holder[1]}|{feature}"


def candidates(
    node: str, window: Window, bracket: Bracket, frozen: dict[str, Before], settings: JudgeSettings
) -> list[Candidate]:
    """Every holder's features on one node that amount to something, each with its verdict."""
    found = []
    used = {port.device for port in window.port_of.values() if port.used}
    for holder, feature, series in _features(window):
        key = frozen_key(node, holder, feature)
        before = _before(series, window, bracket, frozen.get(key), settings)
        if before is None:
            continue
        floor = _floor(window, holder[1], feature, bracket, before, settings)
        candidate = _judge(window, node, window.who[holder], feature, series, before, bracket, floor)
        if candidate is not None:
            on_port = not used or holder[1] in used
            found.append(candidate if on_port else _ruled(candidate, "other_port", {}))
    return _dose_veto(found, settings)


def _features(window: Window) -> list[tuple[HolderKey, str, NDArray[np.float64]]]:
    out: list[tuple[HolderKey, str, NDArray[np.float64]]] = []
    for (holder, name), row in window.suspects.items():
        if name in FLOORS or name in BYTES:
            out.append((holder, name, row))
    for churn, parts in _CHURNS.items():
        holders = {holder: None for holder, name in window.suspects if name in parts}
        for holder in holders:
            rows = [window.suspects[holder, part] for part in parts if (holder, part) in window.suspects]
            out.append((holder, churn, np.sum(rows, axis=0)))
    return sorted(out, key=lambda entry: (entry[0], entry[1]))


def _before(
    series: NDArray[np.float64], window: Window, bracket: Bracket, kept: Before | None, settings: JudgeSettings
) -> Before | None:
    """Levels and edges; those from before the history come from `kept`. None: too little was seen to tell."""
    ramp_from = min(bracket.rise_from, bracket.onset_tick - settings.ramp_ticks)
    past = window.seen(window.first_tick, ramp_from - 1)
    quiet_part = series[past][window.quiet[past]][-settings.quiet_ticks :]
    seen = quiet_part[~np.isnan(quiet_part)]
    end = (bracket.recovered_tick if bracket.recovered_tick is not None else bracket.now_tick) - 1
    start = min(bracket.rise_to + 1, max(end - 5, bracket.onset_tick))
    inside = series[window.seen(start, end)]
    inside = inside[~np.isnan(inside)]
    early = inside[:EARLY_TICKS]  # Who stopped soon shows here, and is told with the dose that it had
    if len(seen) < FEWEST_QUIET_TICKS:
        if kept is None:
            return None
        quiet, spread, active = kept.quiet, kept.spread, kept.active
    else:
        quiet = float(np.median(seen))
        spread = float(np.median(np.abs(seen - quiet)))
        active = -1.0
    episode = (
        max(float(np.median(inside)), float(np.median(early)))
        if len(inside)
        else (kept.episode if kept is not None else quiet)
    )
    if kept is not None and len(seen) < FEWEST_QUIET_TICKS:
        episode = max(episode, kept.episode)
    rise, fall = _edges(series, window, quiet + (episode - quiet) / 2, bracket)
    if active < 0:
        active = float((_smooth(seen) >= quiet + (episode - quiet) / 2).mean()) if episode > quiet else 1.0
    elif kept is not None:
        rise = kept.rise_tick if kept.rise_tick is not None else rise
        fall = kept.fall_tick if kept.fall_tick is not None else fall
    return Before(quiet=quiet, spread=spread, active=active, episode=episode, rise_tick=rise, fall_tick=fall)


def _edges(
    series: NDArray[np.float64], window: Window, level: float, bracket: Bracket
) -> tuple[int | None, int | None]:
    """Start and end (None: goes on) of the active run that overlaps the episode most."""
    active = _smooth(series) >= level
    if not active.any():
        return None, None
    padded = np.concatenate(([False], active, [False]))
    flips = np.flatnonzero(padded[1:] != padded[:-1])
    starts, ends = flips[::2], flips[1::2]
    apart = np.flatnonzero(starts[1:] - ends[:-1] >= MERGE_GAP_TICKS)
    starts, ends = starts[np.concatenate(([0], apart + 1))], ends[np.concatenate((apart, [len(ends) - 1]))]
    low = bracket.onset_tick - window.first_tick
    high = (bracket.recovered_tick or bracket.now_tick) - window.first_tick
    overlap = np.minimum(ends, high) - np.maximum(starts, low)
    best = int(np.argmax(overlap))
    if overlap[best] <= 0:
        return None, None
    goes_on = int(ends[best]) >= window.ticks - SMOOTH_TICKS // 2
    rise = None if starts[best] == 0 else window.first_tick + int(starts[best])
    return rise, None if goes_on else window.first_tick + int(ends[best])


def _smooth(series: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centred mean over what was seen."""
    if len(series) < SMOOTH_TICKS:
        return np.nan_to_num(series)
    seen = ~np.isnan(series)
    kernel = np.ones(SMOOTH_TICKS)
    total = np.convolve(np.nan_to_num(series), kernel, "same")
    weight = np.convolve(seen.astype(np.float64), kernel, "same")
    return np.asarray(total / np.maximum(weight, 1.0))


def _floor(
    window: Window, device: str, feature: str, bracket: Bracket, before: Before, settings: JudgeSettings
) -> float:
    if feature not in BYTES:
        floor = FLOORS[feature]
        return max(floor, (QP_LIVE_TIMES - 1) * before.quiet) if feature == features.QP_LIVE else floor
    end = bracket.recovered_tick if bracket.recovered_tick is not None else bracket.now_tick
    total = port_bytes(window, device, feature, bracket.onset_tick, end)
    return max(total * settings.byte_share_floor_e4 / 10_000, 1.0)


def port_bytes(window: Window, device: str, feature: str, tick_from: int, tick_to: int) -> float:
    """Mean bytes per tick through a device in a feature's direction; what its holders moved where no port tells."""
    part = window.seen(tick_from, tick_to)
    name = features.PORT_TX_BYTES if feature == features.TX_BYTES else features.PORT_RX_BYTES
    rows = [row[part] for ((of, _), port_name), row in window.ports.items() if of == device and port_name == name]
    if not rows:
        rows = [row[part] for ((_, of), own), row in window.suspects.items() if of == device and own == feature]
        rows += [row[part] for ((of, _), own), row in window.own.items() if of == device and own == feature]
    total = np.sum(rows, axis=0) if rows else np.zeros(0)
    total = total[~np.isnan(total)]
    return float(total.mean()) if len(total) else 0.0


def _judge(
    window: Window,
    node: str,
    who: Suspect,
    feature: str,
    series: NDArray[np.float64],
    before: Before,
    bracket: Bracket,
    floor: float,
) -> Candidate | None:
    dose = before.episode - before.quiet
    if max(before.episode, before.quiet) < floor and dose <= floor / 100:
        return None
    numbers = {
        "quiet_level": whole(before.quiet),
        "episode_level": whole(before.episode),
        "onset_tick": bracket.onset_tick,
    }
    reason = _timing(before, bracket)
    if dose > 0 and before.rise_tick is not None:  # Who did no more than before has no edges
        numbers["edge_tick"] = before.rise_tick
    if dose > 0 and before.fall_tick is not None:
        numbers["stop_tick"] = before.fall_tick
    if reason in {None, "started_after"} and (dose < floor or dose < NOISE_FACTOR * before.spread):
        reason = "too_little"
        numbers["floor"] = whole(floor)
    if bracket.recovered_tick is not None:
        numbers["recovered_tick"] = bracket.recovered_tick
    return Candidate(
        who=who,
        node=node,
        feature=feature,
        before=before,
        dose=max(dose, 0.0),
        score_e4=_score(window, series, before, bracket),
        reason=reason,
        numbers=numbers,
    )


def _timing(before: Before, bracket: Bracket) -> str | None:
    if before.episode <= before.quiet or (before.rise_tick is None and before.active > 0.5):
        return "active_before"
    if before.rise_tick is None:
        return "active_before" if before.fall_tick is not None else "too_little"
    if before.rise_tick > bracket.rise_to:
        return "started_after"
    if before.rise_tick < bracket.rise_from:
        return "active_before"
    if before.fall_tick is not None and before.fall_tick < bracket.still_slow_from:
        return "stopped_before"
    gone_on = before.fall_tick is None or (bracket.fall_to is not None and before.fall_tick > bracket.fall_to)
    return "went_on" if bracket.fall_to is not None and gone_on else None


def _score(window: Window, series: NDArray[np.float64], before: Before, bracket: Bracket) -> int:
    """Specificity before plus specificity after, each at most 10,000."""
    active = _smooth(series) >= before.quiet + (before.episode - before.quiet) / 2
    end = (bracket.recovered_tick if bracket.recovered_tick is not None else bracket.now_tick) - 1
    inside = active[window.seen(max(before.rise_tick or 0, bracket.onset_tick), end)]
    if not len(inside):
        return 0
    share = float(inside.mean())
    score = share - before.active
    if bracket.fall_to is not None:
        after = active[window.seen(bracket.fall_to + 1, bracket.now_tick)]
        score += share - (float(after.mean()) if len(after) else 0.0)
    return round(10_000 * score)


def _dose_veto(found: list[Candidate], settings: JudgeSettings) -> list[Candidate]:
    """A dose below a tenth of the largest that fits in time is not the cause beside it."""
    largest: dict[str, float] = {}
    for candidate in (candidate for candidate in found if candidate.reason is None):
        largest[candidate.feature] = max(largest.get(candidate.feature, 0.0), candidate.dose)
    return [
        _ruled(candidate, "too_little", {"largest_dose": whole(largest[candidate.feature])})
        if candidate.reason is None and candidate.dose < largest[candidate.feature] * settings.dose_floor_e4 / 10_000
        else candidate
        for candidate in found
    ]


def _ruled(candidate: Candidate, reason: str, numbers: dict[str, int]) -> Candidate:
    return replace(candidate, reason=reason, numbers=candidate.numbers | numbers)
