"""Every metric of the exporter: its name, meaning and labels, all of them bounded by what runs now or by our own code.

`hpc_job` and `component_instance` stand where one might say job and instance: those two are Prometheus' own target
labels, which would rename ours to exported_job; `hpc_job` is dcgm-exporter's name for the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass

COMPONENT = "sink-prometheus"  # As the exporter names itself
JOB_LABELS = ("cluster", "hpc_job", "tenant", "source")
COMPONENT_LABELS = ("cluster", "component", "component_instance", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One metric."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    is_counter: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One series' value now."""

    metric: Declared
    labels: tuple[str, ...]
    value: float


INCIDENT_OPEN = Declared(
    name="fabric_sentinel_incident_open",
    meaning="Open incidents: one series for each cause that is named, one with an empty cause where nobody is.",
    labels=("cluster", "kind", "verdict", "cause_namespace", "cause_pod", "node", "device", "port", "source"),
)
INCIDENTS = Declared(
    name="fabric_sentinel_incidents_total",
    meaning="Incidents, each counted once, when it is confirmed or ends otherwise, with the verdict it then has.",
    labels=("cluster", "kind", "verdict", "source"),
    is_counter=True,
)
GPU_LOST = Declared(
    name="fabric_sentinel_gpu_lost_seconds_total",
    meaning="GPU time that jobs lost to incidents from which they have recovered; split by share among confirmed "
    "causes, and with an empty cause where none is confirmed.",
    labels=("cluster", "tenant", "cause_namespace", "kind", "verdict", "source"),
    is_counter=True,
)
JOB_HEALTH = Declared(
    name="fabric_sentinel_job_health", meaning="1 for the job's health now.", labels=(*JOB_LABELS, "health")
)
JOB_LOSS = Declared(
    name="fabric_sentinel_job_loss_ratio",
    meaning="Share of its throughput that a job is losing now: 0 while it is healthy, absent while not known.",
    labels=JOB_LABELS,
)
JOB_ITERATION = Declared(
    name="fabric_sentinel_job_iteration_seconds", meaning="The job's latest iteration time.", labels=JOB_LABELS
)
JOB_BASELINE = Declared(
    name="fabric_sentinel_job_baseline_seconds",
    meaning="The iteration time that the job has when nothing slows it.",
    labels=JOB_LABELS,
)
JOB_GPUS = Declared(name="fabric_sentinel_job_gpus", meaning="GPUs of the job, where known.", labels=JOB_LABELS)
PIPELINE_UP = Declared(
    name="fabric_sentinel_pipeline_up",
    meaning="1 while a component reports and does not say that it is down.",
    labels=COMPONENT_LABELS,
)
PIPELINE_STATUS = Declared(
    name="fabric_sentinel_pipeline_status",
    meaning="1 for what a component last said of itself; silent: it says nothing any more.",
    labels=(*COMPONENT_LABELS, "status"),
)
PIPELINE_LAST_SEEN = Declared(
    name="fabric_sentinel_pipeline_last_seen_timestamp_seconds",
    meaning="When a component last reported, by its own clock.",
    labels=COMPONENT_LABELS,
)
PIPELINE_GAPS = Declared(
    name="fabric_sentinel_pipeline_gaps",
    meaning="Things that a component cannot see, by the part that looked.",
    labels=(*COMPONENT_LABELS, "gap_source"),
)
PIPELINE_LOST = Declared(
    name="fabric_sentinel_pipeline_lost_total",
    meaning="What a component has lost since it began, by what it counts.",
    labels=(*COMPONENT_LABELS, "what"),
    is_counter=True,
)
PIPELINE_LAG = Declared(
    name="fabric_sentinel_pipeline_lag_messages",
    meaning="Messages in the log that a sink has not read; absent while not known.",
    labels=COMPONENT_LABELS,
)
PROBES_WANTED = Declared(
    name="fabric_sentinel_pipeline_probes_wanted",
    meaning="Kernel and user probes that an agent wants.",
    labels=COMPONENT_LABELS,
)
PROBES_ATTACHED = Declared(
    name="fabric_sentinel_pipeline_probes_attached", meaning="Probes that are attached.", labels=COMPONENT_LABELS
)
DEAD_LETTERS = Declared(
    name="fabric_sentinel_dead_letters_total",
    meaning="Messages that could not be records, by the topic they were on and the component that refused them, "
    "since the exporter started.",
    labels=("cluster", "topic", "component"),
    is_counter=True,
)
CAUGHT_UP = Declared(
    name="fabric_sentinel_exporter_caught_up",
    meaning="1 once the exporter has read its topics up to their ends; until then it tells nothing else.",
)
DROPPED_SERIES = Declared(
    name="fabric_sentinel_exporter_dropped_series",
    meaning="Series of a metric left out because there are too many.",
    labels=("metric",),
)

FINDINGS = (INCIDENT_OPEN, INCIDENTS, GPU_LOST, JOB_HEALTH, JOB_LOSS, JOB_ITERATION, JOB_BASELINE, JOB_GPUS)
PIPELINE = (
    PIPELINE_UP,
    PIPELINE_STATUS,
    PIPELINE_LAST_SEEN,
    PIPELINE_GAPS,
    PIPELINE_LOST,
    PIPELINE_LAG,
    PROBES_WANTED,
    PROBES_ATTACHED,
    DEAD_LETTERS,
)
ALL = (*FINDINGS, *PIPELINE, CAUGHT_UP, DROPPED_SERIES)
