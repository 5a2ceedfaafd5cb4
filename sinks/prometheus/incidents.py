"""Incidents as samples: gauges for those that are open, counters for those that are decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sinks.prometheus.declared import GPU_LOST, INCIDENT_OPEN, INCIDENTS, Sample
from streams.contract.findings import Cause, Incident, Verdict, Victim
from streams.contract.ticks import us_of_tick

# An open incident is told again every five seconds of event time. One that is not told any more for so long has lost
# its judge (a worker began without state), and would stay open for ever: its topic is compacted and never deleted.
FORGET_OPEN_US = 600 * 1_000_000
_WHOLE_E4 = 10_000


class Incidents:
    """The highest revision of each incident that is open, and what those that are decided add up to.

    Counters must never go down, and findings are corrected. So an incident is counted once, when it is decided:
    confirmed, which it stays, or ended. A victim's loss is counted once, when the victim has recovered (an episode's
    closing revision is its last) from a decided incident; it is counted by episode, so that an incident merged into
    another one, and its victim with it, counts nothing twice. Nothing is taken back. After a restart everything is
    counted again from the compacted topic and comes out the same, but for what was regrouped after it was counted.
    """

    def __init__(self) -> None:
        self._revisions: dict[str, int] = {}
        self._open: dict[str, Incident] = {}
        self._counted: set[str] = set()
        self._charged: set[str] = set()
        self._counted_by: Counter[tuple[str, ...]] = Counter()
        self._lost_ms_by: Counter[tuple[str, ...]] = Counter()

    def apply(self, incident: Incident) -> None:
        """Take a revision; an older one than is known changes nothing."""
        if incident.revision <= self._revisions.get(incident.incident_id, -1):
            return
        self._revisions[incident.incident_id] = incident.revision
        self._open.pop(incident.incident_id, None)
        if incident.merged_into is not None:
            return  # Its victim is among those of the incident that it was merged into
        if incident.recovered_tick is None:
            self._open[incident.incident_id] = incident
        if incident.verdict is Verdict.CONFIRMED or incident.recovered_tick is not None:
            self._count(incident)

    def samples(self, now_us: int) -> Iterator[Sample]:
        """The gauges and counters as they stand."""
        opened: Counter[tuple[str, ...]] = Counter()
        for incident in self._open.values():
            if us_of_tick(incident.as_of_tick) >= now_us - FORGET_OPEN_US:
                opened.update(set(_places(incident)))
        yield from (Sample(INCIDENT_OPEN, labels, count) for labels, count in opened.items())
        yield from (Sample(INCIDENTS, labels, count) for labels, count in self._counted_by.items())
        yield from (Sample(GPU_LOST, labels, lost_ms / 1000) for labels, lost_ms in self._lost_ms_by.items())

    def _count(self, incident: Incident) -> None:
        if incident.incident_id not in self._counted:
            self._counted.add(incident.incident_id)
            self._counted_by[(incident.cluster, incident.kind, incident.verdict, incident.source)] += 1
        for victim in incident.victims:
            self._charge(incident, victim)

    def _charge(self, incident: Incident, victim: Victim) -> None:
        if victim.recovered_tick is None or victim.gpu_ms_lost is None or victim.episode_id in self._charged:
            return
        self._charged.add(victim.episode_id)
        for namespace, lost_ms in _shares(incident, victim.gpu_ms_lost):
            labels = (
                incident.cluster,
                victim.tenant or "",
                namespace,
                incident.kind,
                incident.verdict,
                incident.source,
            )
            self._lost_ms_by[labels] += lost_ms


def _shares(incident: Incident, lost_ms: int) -> Iterator[tuple[str, int]]:
    """(namespace, part) of a loss; the parts add up to the whole, what nobody is confirmed to have caused is ""."""
    left_ms = lost_ms
    causes: list[Cause] = incident.causes if incident.verdict is Verdict.CONFIRMED else []
    for cause in causes:
        part_ms = min(left_ms, lost_ms * cause.share_e4 // _WHOLE_E4)
        left_ms -= part_ms
        yield cause.namespace or "", part_ms
    if left_ms or not causes:
        yield "", left_ms


def _places(incident: Incident) -> Iterator[tuple[str, ...]]:
    head = (incident.cluster, incident.kind, incident.verdict)
    for cause in incident.causes:
        place = (cause.namespace or "", cause.pod or "", cause.node, cause.device, str(cause.port))
        yield (*head, *place, incident.source)
    if not incident.causes:
        yield (*head, "", "", *_link(incident.link_port), incident.source)


def _link(link_port: str | None) -> tuple[str, str, str]:
    """Node, device and port of "node/device/port"."""
    parts = (link_port or "").rsplit("/", 2)
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("", "", "")
