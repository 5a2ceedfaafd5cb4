"""An incident as the JSON object that scripts and outside checks read; unknown is null, never a made-up value."""

from __future__ import annotations

from streams.contract.findings import Cause, EpisodePod, Incident, Kind, Recovery, RuledOut, Verdict, Victim
from streams.contract.header import Rung
from streams.contract.ticks import rfc3339_of_tick

E4 = 10_000  # Shares and losses travel in 10^-4
MICROS = 1_000_000
Json = dict[str, object]


def to_json(incident: Incident) -> Json:
    """The stable interface: fractions, seconds and currency units instead of the record's integers."""
    return {
        "incident_id": incident.incident_id,
        "revision": incident.revision,
        "cluster": incident.cluster,
        "verdict": None if incident.verdict is Verdict.UNKNOWN else incident.verdict.value,
        "kind": None if incident.kind is Kind.UNKNOWN else incident.kind.value,
        "causes": [_cause(cause) for cause in incident.causes],
        "victims": [_victim(victim) for victim in incident.victims],
        "total_cost": _units(incident.total_cost_micros),
        "onset": rfc3339_of_tick(incident.onset_tick),
        "recovered": rfc3339_of_tick(incident.recovered_tick),
        "onset_tick": incident.onset_tick,
        "recovered_tick": incident.recovered_tick,
        "decided_tick": incident.decided_tick,
        "rung": None if incident.rung is Rung.UNKNOWN else incident.rung.value,
        "link_port": incident.link_port,
        "ruled_out": [_ruled_out(hypothesis) for hypothesis in incident.ruled_out],
        "recovery": _recovery(incident.recovery),
        "not_observed": list(incident.not_observed),
        "recommendation": incident.recommendation,
    }


def pod_label(namespace: str | None, name: str | None, otherwise: str) -> str:
    """`namespace/name` as far as it is known, else the identity given instead."""
    if name is None:
        return otherwise
    return name if namespace is None else f"{namespace}/{name}"


def _cause(cause: Cause) -> Json:
    return {
        "namespace": cause.namespace,
        "pod": cause.pod,
        "pod_uid": cause.pod_uid,
        "tenant": cause.tenant,
        "node": cause.node,
        "device": cause.device,
        "port": cause.port,
        "share": cause.share_e4 / E4,
    }


def _victim(victim: Victim) -> Json:
    return {
        "job": victim.job,
        "tenant": victim.tenant,
        "nodes": list(victim.nodes),
        "pods": [_pod(pod) for pod in victim.pods],
        "gpus": victim.gpus,
        "loss": victim.loss_e4 / E4,
        "loss_low": victim.loss_low_e4 / E4,
        "loss_high": victim.loss_high_e4 / E4,
        "gpu_seconds_lost": None if victim.gpu_ms_lost is None else victim.gpu_ms_lost / 1000,
        "cost": _units(victim.cost_micros),
        "currency": victim.currency,
    }


def _pod(pod: EpisodePod) -> str:
    return pod_label(pod.namespace, pod.name, pod.pod_uid)


def _ruled_out(hypothesis: RuledOut) -> Json:
    return {
        "pod_uid": hypothesis.pod_uid,
        "pod": hypothesis.pod,
        "what": hypothesis.what,
        "reason": hypothesis.reason,
        "numbers": dict(hypothesis.numbers),
    }


def _recovery(recovery: Recovery) -> Json:
    return {
        "link": rfc3339_of_tick(recovery.link),
        "routing": rfc3339_of_tick(recovery.routing),
        "queue_pair": rfc3339_of_tick(recovery.queue_pair),
        "traffic": rfc3339_of_tick(recovery.traffic),
        "workload": rfc3339_of_tick(recovery.workload),
        "telemetry": rfc3339_of_tick(recovery.telemetry),
    }


def _units(micros: int | None) -> float | None:
    return None if micros is None else micros / MICROS
