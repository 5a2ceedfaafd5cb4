"""Every record that is not a sample as rows: pods, nodes, findings, dead-letters, pipeline-health."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sinks.clickhouse.columns import ValueRows, value_rows
from sinks.clickhouse.gap_columns import gap_columns
from streams.contract.findings import Cause, Episode, Incident, JobState, RuledOut, Victim
from streams.contract.inputs import NodePods
from streams.contract.plumbing import DeadLetter, PipelineHealth

# Columns that carry the field of the same name as it is; tests hold these against the records and the tables.
EPISODE_FIELDS = (
    "episode_id",
    "revision",
    "cluster",
    "job",
    "job_name",
    "job_epoch",
    "tenant",
    "alarm_tick",
    "onset_tick",
    "recovered_tick",
    "decided_tick",
    "as_of_tick",
    "baseline_us",
    "slowed_us",
    "iterations",
    "loss_e4",
    "loss_low_e4",
    "loss_high_e4",
    "timing_source",
    "nodes",
    "gpus",
    "gpu_ms_lost",
    "link_port",
    "not_observed",
)
INCIDENT_FIELDS = (
    "incident_id",
    "revision",
    "cluster",
    "merged_into",
    "total_cost_micros",
    "currency",
    "onset_tick",
    "recovered_tick",
    "decided_tick",
    "as_of_tick",
    "link_port",
    "not_observed",
    "recommendation",
)
CAUSE_FIELDS = (
    "holder",
    "namespace",
    "pod",
    "pod_uid",
    "tenant",
    "job",
    "node",
    "device",
    "port",
    "share_e4",
    "feature",
)
VICTIM_FIELDS = (
    "episode_id",
    "job",
    "job_name",
    "tenant",
    "nodes",
    "gpus",
    "onset_tick",
    "recovered_tick",
    "loss_e4",
    "loss_low_e4",
    "loss_high_e4",
    "gpu_ms_lost",
    "cost_micros",
    "currency",
)
RULED_OUT_FIELDS = ("what", "holder", "namespace", "pod", "pod_uid", "node", "reason", "numbers")
JOB_STATE_FIELDS = (
    "cluster",
    "job",
    "job_name",
    "job_epoch",
    "tenant",
    "tick",
    "why",
    "nodes",
    "ports",
    "gpus",
    "iteration_us",
    "baseline_us",
    "episode_id",
)
Row = dict[str, object]


def incident_rows(incidents: Sequence[Incident]) -> ValueRows:
    """One row per revision, the whole record beside its columns."""
    return value_rows(
        "incidents",
        [
            {
                **_same(incident, INCIDENT_FIELDS),
                "source": incident.source.value,
                "verdict": incident.verdict.value,
                "kind": incident.kind.value,
                "rung": incident.rung.value,
                **_nested("causes", incident.causes, CAUSE_FIELDS),
                **_nested("victims", incident.victims, VICTIM_FIELDS),
                **_nested("ruled_out", incident.ruled_out, RULED_OUT_FIELDS),
                "record": msgspec.json.encode(incident).decode(),
            }
            for incident in incidents
        ],
    )


def incident_of(record: str) -> Incident:
    """The incident that a row's `record` column holds."""
    return msgspec.json.decode(record, type=Incident)


def episode_rows(episodes: Sequence[Episode]) -> ValueRows:
    """One row per revision, the whole record beside its columns."""
    return value_rows(
        "episodes",
        [
            {
                **_same(episode, EPISODE_FIELDS),
                "source": episode.source.value,
                "verdict": episode.verdict.value,
                "kind": episode.kind.value,
                "rung": episode.rung.value,
                **_nested("causes", episode.causes, CAUSE_FIELDS),
                **_nested("ruled_out", episode.ruled_out, RULED_OUT_FIELDS),
                "record": msgspec.json.encode(episode).decode(),
            }
            for episode in episodes
        ],
    )


def job_state_rows(states: Sequence[JobState], offsets: Sequence[int]) -> ValueRows:
    """One row per state."""
    return value_rows(
        "job_states",
        [
            {
                **_same(state, JOB_STATE_FIELDS),
                "source": state.source.value,
                "health": state.health.value,
                "log_offset": offset,
            }
            for state, offset in zip(states, offsets, strict=True)
        ],
    )


def pod_rows(lists: Sequence[NodePods]) -> ValueRows:
    """One row per pod of each node's list."""
    return value_rows(
        "pods",
        [
            {
                "cluster": nodes_pods.cluster,
                "node": nodes_pods.node,
                "pod_uid": pod.pod_uid,
                "namespace": pod.namespace,
                "name": pod.name,
                "tenant": pod.tenant,
                "job": pod.job.key if pod.job else None,
                "gpus": pod.gpus,
                "qos": pod.qos,
                "labels": pod.labels,
                "containers.container_id": [container.container_id for container in pod.containers],
                "containers.name": [container.name for container in pod.containers],
                "valid_from_tick": pod.valid_from_tick,
                "valid_to_tick": pod.valid_to_tick,
                "as_of_tick": nodes_pods.as_of_tick,
                "source": nodes_pods.source.value,
            }
            for nodes_pods in lists
            for pod in nodes_pods.pods
        ],
    )


def node_rows(lists: Sequence[NodePods]) -> ValueRows:
    """What is known of each node apart from its pods."""
    return value_rows(
        "nodes",
        [
            {
                "cluster": nodes_pods.cluster,
                "node": nodes_pods.node,
                "gpu_model": nodes_pods.facts.gpu_model,
                "gpu_hour_price_micros": nodes_pods.facts.gpu_hour_price_micros,
                "currency": nodes_pods.facts.currency,
                "price_source": nodes_pods.facts.price_source,
                "labels": nodes_pods.facts.labels,
                "as_of_tick": nodes_pods.as_of_tick,
            }
            for nodes_pods in lists
        ],
    )


def dead_letter_rows(letters: Sequence[DeadLetter]) -> ValueRows:
    """One row per refused message, its bytes whole."""
    return value_rows(
        "dead_letters",
        [
            {
                "topic": letter.topic,
                "log_partition": letter.partition,
                "log_offset": letter.offset,
                "component": letter.component,
                "reason": letter.reason,
                "key": letter.key,
                "value": letter.value,
                "headers": {name: value.decode("utf-8", "backslashreplace") for name, value in letter.headers.items()},
                "broker_time_ms": letter.broker_time_ms,
            }
            for letter in letters
        ],
    )


def health_rows(reports: Sequence[PipelineHealth]) -> ValueRows:
    """One row per report of a component."""
    return value_rows(
        "pipeline_health",
        [
            {
                "cluster": report.cluster,
                "component": report.component,
                "instance": report.instance,
                "epoch": report.epoch,
                "us": report.us,
                "source": report.source.value,
                "status": report.status.value,
                "message": report.message,
                "probes_wanted": report.probes_wanted,
                "probes_attached": report.probes_attached,
                **gap_columns(report.gaps),
                "counts": report.counts,
            }
            for report in reports
        ],
    )


def _same(record: msgspec.Struct, fields: Sequence[str]) -> Row:
    return {field: getattr(record, field) for field in fields}


def _nested(column: str, parts: Sequence[Cause | Victim | RuledOut], fields: Sequence[str]) -> Row:
    return {f"{column}.{field}": [getattr(part, field) for part in parts] for field in fields}
