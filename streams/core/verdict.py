"""One decision about one slow job: link, not the fabric, this suspect, these suspects, or nobody."""

from __future__ import annotations

from dataclasses import dataclass, field

from streams.contract import features
from streams.contract.findings import Cause, Kind, RuledOut, Verdict
from streams.contract.header import Rung
from streams.core.decompose import Parts, Slower, decompose
from streams.core.history import History, Window
from streams.core.iterations import Sample
from streams.core.kinds import is_bytes, kind_of, link_event, port_at_capacity, port_was_full
from streams.core.settings import JudgeSettings
from streams.core.suspects import Before, Bracket, Candidate, candidates, whole

MOST_RULED_OUT = 16  # Per episode; the largest doses are told
PEER_DOSE = 0.25  # A receiver whose bytes are within this of a sender's is its other end


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one evaluation found."""

    verdict: Verdict
    kind: Kind
    causes: list[Cause] = field(default_factory=list)
    ruled_out: list[RuledOut] = field(default_factory=list)
    rung: Rung = Rung.UNKNOWN
    link_port: str | None = None
    link_up_tick: int | None = None
    rise_tick: int | None = None  # Of the first cause
    fall_tick: int | None = None
    frozen: dict[str, Before] = field(default_factory=dict)
    not_observed: list[str] = field(default_factory=list)


def decide(
    histories: dict[str, History],
    rungs: dict[str, Rung],
    bracket: Bracket,
    *,
    quiet: list[Sample],
    slow: list[Sample],
    frozen: dict[str, Before],
    slow_spans: list[tuple[int, int]],
    settings: JudgeSettings,
) -> Decision:
    """Weigh the evidence of all of the job's nodes."""
    first = bracket.now_tick - settings.history_ticks
    windows = {node: Window(history, first, bracket.now_tick) for node, history in sorted(histories.items())}
    for window in windows.values():
        window.mark_slow(slow_spans, margin_ticks=settings.ramp_ticks)
    end = bracket.recovered_tick if bracket.recovered_tick is not None else bracket.now_tick
    for node, window in windows.items():
        link = link_event(window, tick_from=bracket.rise_from, tick_to=end)
        if link is not None:
            kind, port, _, up_tick = link
            return Decision(
                verdict=Verdict.LINK,
                kind=kind,
                rung=Rung.PORT_TOTALS,
                link_port=f"{node}/{port}",
                link_up_tick=up_tick,
                frozen=frozen,
            )
    found = [c for node, window in windows.items() for c in candidates(node, window, bracket, frozen, settings)]
    remembered = frozen | {candidate.key: candidate.before for candidate in found}
    parts = {node: part for node, window in windows.items() if (part := decompose(window, quiet, slow)) is not None}
    unseen = _unseen(windows, parts)
    if _slower(parts) is Slower.GAP:
        unchanged = [_excused(candidate, parts) for candidate in found]
        return Decision(
            verdict=Verdict.NOT_FABRIC,
            kind=Kind.NOT_FABRIC,
            ruled_out=_told(unchanged),
            rung=_bytes_rung(rungs, parts),
            frozen=remembered,
            not_observed=unseen,
        )
    found = [_mechanism(candidate, found, windows, bracket, parts) for candidate in found]
    passed = _one_per_holder([candidate for candidate in found if candidate.reason is None])
    named = {(candidate.node, candidate.who.holder) for candidate in passed}
    ruled_out = _told([c for c in found if c.reason is not None and (c.node, c.who.holder) not in named])
    if not passed:
        return Decision(
            verdict=Verdict.UNEXPLAINED,
            kind=Kind.UNEXPLAINED,
            ruled_out=ruled_out,
            rung=_bytes_rung(rungs, parts),
            frozen=remembered,
            not_observed=unseen,
        )
    best = max(candidate.score_e4 for candidate in passed)
    close = [candidate for candidate in passed if candidate.score_e4 > best - settings.margin_e4]
    ruled_out += _told([_outscored(candidate, best) for candidate in passed if candidate not in close])
    owners = {candidate.who.job or f"{candidate.node}|{candidate.who.holder}" for candidate in close}
    alone = len(owners) == 1
    confirmed = Verdict.CONFIRMED if bracket.recovered_tick is not None else Verdict.SUSPECTED
    leading = close[0]
    return Decision(
        verdict=confirmed if alone else Verdict.AMBIGUOUS,
        kind=kind_of(leading),
        causes=_causes(close, windows),
        ruled_out=ruled_out[:MOST_RULED_OUT],
        rung=rungs.get(leading.node, Rung.UNKNOWN) if is_bytes(leading) else Rung.KERNEL_PROBES,
        rise_tick=leading.before.rise_tick,
        fall_tick=leading.before.fall_tick,
        frozen=remembered,
        not_observed=unseen,
    )


def _slower(parts: dict[str, Parts]) -> Slower:
    """All nodes together: one that shows slow transfers is enough; a gap must show on all."""
    found = {part.slower for part in parts.values()}
    if Slower.TRANSFER in found:
        return Slower.TRANSFER
    return Slower.GAP if found == {Slower.GAP} else Slower.UNKNOWN


def _excused(candidate: Candidate, parts: dict[str, Parts]) -> Candidate:
    if candidate.reason is not None or candidate.node not in parts:
        return candidate
    part = parts[candidate.node]
    numbers = {
        "transfer_share_e4": part.transfer_share_e4,
        "quiet_bytes_per_tick": whole(part.quiet_rate),
        "slow_bytes_per_tick": whole(part.slow_rate),
    }
    return _with(candidate, "transfer_unchanged", numbers)


def _mechanism(
    candidate: Candidate,
    found: list[Candidate],
    windows: dict[str, Window],
    bracket: Bracket,
    parts: dict[str, Parts],
) -> Candidate:
    """Hold a suspect that fits in time against what its port and the job's transfers looked like."""
    if candidate.reason is not None:
        return candidate
    window = windows[candidate.node]
    if _slower(parts) is Slower.UNKNOWN and not (is_bytes(candidate) and port_at_capacity(window, candidate, bracket)):
        return _with(candidate, "transfer_not_seen", {})
    if is_bytes(candidate):
        part = parts.get(candidate.node)
        if part is not None and part.slower is Slower.GAP:
            return _excused(candidate, parts)
        if not port_was_full(window, candidate, bracket):
            return _with(candidate, "port_not_full", {})
        sender = next((other for other in found if _receives_from(candidate, other)), None)
        return candidate if sender is None else _with(candidate, "receiver", {"sender_dose": whole(sender.dose)})
    fills = any(
        is_bytes(other)
        and other.reason is None
        and (other.node, other.who.device) == (candidate.node, candidate.who.device)
        and port_was_full(window, other, bracket)
        for other in found
    )
    return _with(candidate, "port_full_of_bytes", {}) if fills else candidate


def _receives_from(candidate: Candidate, other: Candidate) -> bool:
    return (
        candidate.feature == features.RX_BYTES
        and other.feature == features.TX_BYTES
        and other.reason is None
        and (other.node, other.who.holder) != (candidate.node, candidate.who.holder)
        and abs(other.dose - candidate.dose) <= PEER_DOSE * other.dose
    )


def _one_per_holder(passed: list[Candidate]) -> list[Candidate]:
    """A holder's best feature: bytes before objects (they fill the port), then the larger dose; largest first."""
    best: dict[tuple[str, str], Candidate] = {}
    for candidate in sorted(passed, key=lambda c: (not is_bytes(c), -c.dose, c.node, c.who.holder, c.who.device)):
        best.setdefault((candidate.node, candidate.who.holder), candidate)
    return list(best.values())


def _causes(close: list[Candidate], windows: dict[str, Window]) -> list[Cause]:
    comparable = len({candidate.feature for candidate in close}) == 1
    total = sum(candidate.dose for candidate in close) if comparable else 0.0
    shares = [round(10_000 * candidate.dose / total) if total > 0 else 10_000 // len(close) for candidate in close]
    shares[0] += 10_000 - sum(shares)
    return [
        Cause(
            holder=candidate.who.holder,
            namespace=candidate.who.namespace,
            pod=candidate.who.name,
            pod_uid=candidate.who.pod_uid,
            container_id=candidate.who.container_id,
            tenant=candidate.who.tenant,
            job=candidate.who.job,
            node=candidate.node,
            device=candidate.who.device,
            port=_port_number(windows[candidate.node], candidate.who.device),
            share_e4=share,
            feature=candidate.feature,
            onset_tick=candidate.before.rise_tick,
            recovered_tick=candidate.before.fall_tick,
            quiet_level=whole(candidate.before.quiet),
            episode_level=whole(candidate.before.episode),
        )
        for candidate, share in zip(close, shares, strict=True)
    ]


def _port_number(window: Window, device: str) -> int:
    return min((number for name, number in window.port_of if name == device), default=1)


def _told(ruled: list[Candidate]) -> list[RuledOut]:
    """One line per holder: its largest dose; largest first."""
    lines: dict[tuple[str, str], RuledOut] = {}
    for candidate in sorted(ruled, key=lambda c: (not is_bytes(c), -c.before.episode, c.node, c.who.holder)):
        lines.setdefault(
            (candidate.node, candidate.who.holder),
            RuledOut(
                what="pod" if candidate.who.pod_uid is not None else "process",
                holder=candidate.who.holder,
                namespace=candidate.who.namespace,
                pod=candidate.who.name,
                pod_uid=candidate.who.pod_uid,
                node=candidate.node,
                reason=candidate.reason or "",
                numbers=candidate.numbers,
            ),
        )
    return list(lines.values())[:MOST_RULED_OUT]


def _outscored(candidate: Candidate, best_e4: int) -> Candidate:
    return _with(candidate, "fits_less", {"score_e4": candidate.score_e4, "best_score_e4": best_e4})


def _with(candidate: Candidate, reason: str, numbers: dict[str, int]) -> Candidate:
    return Candidate(
        who=candidate.who,
        node=candidate.node,
        feature=candidate.feature,
        before=candidate.before,
        dose=candidate.dose,
        score_e4=candidate.score_e4,
        reason=reason,
        numbers=candidate.numbers | numbers,
    )


def _unseen(windows: dict[str, Window], parts: dict[str, Parts]) -> list[str]:
    lines = []
    for node, window in windows.items():
        bytes_of_holders = any(name in {features.TX_BYTES, features.RX_BYTES} for _, name in window.suspects)
        own = any(name in {features.TX_BYTES, features.RX_BYTES} for _, name in window.own)
        if window.who and not bytes_of_holders and not own:
            lines.append(f"no per-pod bytes on node {node}")
        if node not in parts:
            lines.append(f"no bytes of the job on node {node}: transfer and compute time could not be separated there")
        elif parts[node].slower is Slower.UNKNOWN:
            lines.append(f"transfer and compute time could not be separated on node {node} with 100 ms ticks")
        elif parts[node].port_totals:
            lines.append(f"the job's own bytes on node {node}: its ports' totals stood for them")
    return lines


def _bytes_rung(rungs: dict[str, Rung], parts: dict[str, Parts]) -> Rung:
    if any(not part.port_totals for part in parts.values()):
        return next((rungs[node] for node in sorted(parts) if not parts[node].port_totals), Rung.UNKNOWN)
    return Rung.PORT_TOTALS if parts else Rung.UNKNOWN
