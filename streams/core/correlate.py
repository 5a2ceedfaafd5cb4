"""The third step: the cluster's episodes grouped by cause, a function of their set and not of their order."""

from __future__ import annotations

import msgspec

from streams.contract.findings import Cause, Episode, Incident, JobState, RuledOut, Verdict, Victim
from streams.contract.header import Rung, Source
from streams.core.recommend import recommendation
from streams.core.settings import CorrelateSettings

FORMAT = 1
_MS_PER_HOUR = 3_600_000
_ORDER = (
    Verdict.CONFIRMED,
    Verdict.SUSPECTED,
    Verdict.AMBIGUOUS,
    Verdict.LINK,
    Verdict.FABRIC,
    Verdict.UNEXPLAINED,
    Verdict.NOT_FABRIC,
)
_RUNGS = (Rung.PROCESS_BYTES, Rung.PROCESS_COUNTERS, Rung.KERNEL_PROBES, Rung.PORT_TOTALS, Rung.UNKNOWN)


class CorrelateState(msgspec.Struct, kw_only=True):
    """Everything that `correlate` remembers."""

    format: int = FORMAT
    episodes: dict[str, Episode] = {}
    incidents: dict[str, Incident] = {}


class Correlate:
    """The whole cluster. What it says depends on the highest revision of each episode, not on who came first."""

    def __init__(self, settings: CorrelateSettings) -> None:
        self._settings = settings
        self._state = CorrelateState()

    def apply(self, finding: Episode | JobState) -> list[Incident]:
        """Take a finding; return the incidents that it changes. Job states change none so far."""
        if isinstance(finding, JobState):
            return []
        known = self._state.episodes.get(finding.episode_id)
        if known is not None and known.revision >= finding.revision:
            return []
        self._state.episodes[finding.episode_id] = finding
        company = self._company(finding)
        self._forget(finding, company)
        return self._changed(company)

    def snapshot(self) -> bytes:
        """The whole state; `restore` goes on from it as if nothing had happened."""
        return msgspec.msgpack.encode(self._state)

    @classmethod
    def restore(cls, settings: CorrelateSettings, snapshot: bytes) -> Correlate:
        """A `Correlate` in the state that `snapshot` returned."""
        correlate = cls(settings)
        correlate._state = msgspec.msgpack.decode(snapshot, type=CorrelateState)
        return correlate

    def _company(self, episode: Episode) -> list[Episode]:
        """Every episode that is linked to this one through shared nodes at overlapping times, itself included."""
        found = {episode.episode_id: episode}
        reach = [episode]
        while reach:
            current = reach.pop()
            for other in self._state.episodes.values():
                if other.episode_id not in found and _linked(current, other, self._settings.slack_ticks):
                    found[other.episode_id] = other
                    reach.append(other)
        return sorted(found.values(), key=_age)

    def _changed(self, company: list[Episode]) -> list[Incident]:
        out = []
        for incident in group(company, slack_ticks=self._settings.slack_ticks):
            if incident != self._state.incidents.get(incident.incident_id):
                self._state.incidents[incident.incident_id] = incident
                out.append(incident)
        return out

    def _forget(self, newest: Episode, company: list[Episode]) -> None:
        """Episodes that ended long before: their incidents no longer change."""
        oldest = newest.as_of_tick - self._settings.history_ticks
        kept = {episode.episode_id for episode in company}
        for episode_id, episode in list(self._state.episodes.items()):
            if episode.as_of_tick < oldest and episode_id not in kept:
                del self._state.episodes[episode_id]
                self._state.incidents.pop(episode_id, None)


def group(company: list[Episode], *, slack_ticks: int) -> list[Incident]:
    """Incidents of linked episodes: those of one cause are one incident; the others stand alone.

    A member that is not the earliest of its incident is told as merged into it, under its own id. The revision is
    the sum over the whole company: links only grow, so it grows even when a group splits, in whatever order the
    episodes came.
    """
    clusters: list[list[Episode]] = []
    for episode in sorted(company, key=_age):
        home = next((members for members in clusters if _belongs(episode, members, slack_ticks)), None)
        if home is None:
            clusters.append([episode])
        else:
            home.append(episode)
    revision = sum(episode.revision for episode in company)
    found = []
    for members in clusters:
        incident = _incident(members, revision)
        found.append(incident)
        found.extend(
            msgspec.structs.replace(_incident([member], revision), merged_into=incident.incident_id)
            for member in members[1:]
        )
    return found


def _age(episode: Episode) -> tuple[int, str]:
    return episode.alarm_tick, episode.episode_id


def _belongs(episode: Episode, members: list[Episode], slack_ticks: int) -> bool:
    return any(_same_cause(episode, member) and _linked(episode, member, slack_ticks) for member in members)


def _same_cause(one: Episode, other: Episode) -> bool:
    if one.source != other.source:
        return False
    mine = {(cause.node, cause.holder) for cause in one.causes}
    theirs = {(cause.node, cause.holder) for cause in other.causes}
    if mine or theirs:
        return bool(mine & theirs)
    return one.link_port is not None and one.link_port == other.link_port


def _linked(one: Episode, other: Episode, slack_ticks: int) -> bool:
    """Shared nodes at overlapping times. Alarm ticks never move and `as_of` only grows, so a link never breaks."""
    return (
        one.alarm_tick <= other.as_of_tick + slack_ticks
        and other.alarm_tick <= one.as_of_tick + slack_ticks
        and one.cluster == other.cluster
        and not set(one.nodes).isdisjoint(other.nodes)
    )


def _incident(members: list[Episode], revision: int) -> Incident:
    first = members[0]
    victims = [_victim(episode) for episode in members]
    leading = min(members, key=lambda episode: (_rank(episode.verdict), _age(episode)))
    verdict = leading.verdict
    causes = _causes(members)
    costs = [victim.cost_micros for victim in victims if victim.cost_micros is not None]
    currencies = {victim.currency for victim in victims if victim.cost_micros is not None}
    priced = len(costs) == len(victims) and len(currencies) == 1
    ended = all(episode.recovered_tick is not None for episode in members)
    named = {cause.holder for cause in causes}
    return Incident(
        incident_id=first.episode_id,
        revision=revision,
        cluster=first.cluster,
        source=Source.SIMULATED if any(e.source is Source.SIMULATED for e in members) else first.source,
        verdict=verdict,
        kind=leading.kind,
        causes=causes,
        victims=victims,
        total_cost_micros=sum(costs) if priced else None,
        currency=currencies.pop() if priced else None,
        onset_tick=min(episode.onset_tick for episode in members),
        recovered_tick=max(episode.recovered_tick or 0 for episode in members) if ended else None,
        decided_tick=min(episode.decided_tick for episode in members if episode.verdict is verdict),
        as_of_tick=max(episode.as_of_tick for episode in members),
        rung=next(rung for rung in _RUNGS if any(episode.rung is rung for episode in members)),
        link_port=leading.link_port,
        ruled_out=_ruled_out(members, named),
        recovery=leading.recovery,
        not_observed=sorted({line for episode in members for line in episode.not_observed}),
        recommendation=recommendation(verdict, leading.kind, causes, leading.link_port),
    )


def _rank(verdict: Verdict) -> int:
    return _ORDER.index(verdict) if verdict in _ORDER else len(_ORDER)


def _victim(episode: Episode) -> Victim:
    lost, price = episode.gpu_ms_lost, episode.gpu_hour_price_micros
    return Victim(
        episode_id=episode.episode_id,
        job=episode.job,
        job_name=episode.job_name,
        tenant=episode.tenant,
        nodes=episode.nodes,
        pods=episode.pods,
        gpus=episode.gpus,
        onset_tick=episode.onset_tick,
        recovered_tick=episode.recovered_tick,
        loss_e4=episode.loss_e4,
        loss_low_e4=episode.loss_low_e4,
        loss_high_e4=episode.loss_high_e4,
        gpu_ms_lost=lost,
        cost_micros=None if lost is None or price is None else (lost * price + _MS_PER_HOUR // 2) // _MS_PER_HOUR,
        currency=episode.currency,
        price_source=episode.price_source,
    )


def _causes(members: list[Episode]) -> list[Cause]:
    """Each cause once; its share is the mean over its victims, weighted by what they lost."""
    weights = [max(episode.gpu_ms_lost or 0, 1) for episode in members]
    total = sum(weights)
    found: dict[tuple[str, str, str], Cause] = {}
    shares: dict[tuple[str, str, str], int] = {}
    for episode, weight in zip(members, weights, strict=True):
        for cause in episode.causes:
            key = (cause.node, cause.holder, cause.device)
            found.setdefault(key, cause)
            shares[key] = shares.get(key, 0) + cause.share_e4 * weight
    return [
        msgspec.structs.replace(cause, share_e4=shares[key] // total)
        for key, cause in sorted(found.items(), key=lambda item: (-shares[item[0]], item[0]))
    ]


def _ruled_out(members: list[Episode], named: set[str]) -> list[RuledOut]:
    """Each disproof once, under the earliest member that found it; neither a cause nor a victim is ruled out."""
    apart = named | {pod.pod_uid for episode in members for pod in episode.pods}
    found: dict[tuple[str, str | None, str | None, str], RuledOut] = {}
    for episode in members:
        for entry in episode.ruled_out:
            if entry.holder not in apart:
                found.setdefault((entry.what, entry.holder, entry.node, entry.reason), entry)
    return list(found.values())
