"""The topics: their names, keys, partition counts, retention, and the record each one carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from streams.contract.findings import Episode, Incident, JobState
from streams.contract.inputs import NcclThroughput, NicCounters, NodePods
from streams.contract.plumbing import DeadLetter, PipelineHealth, StateChunk
from streams.contract.slices import JobSlice

DEFAULT_PARTITIONS = 32
HOUR_MS = 3_600_000

Cleanup = Literal["delete", "compact", "compact,delete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic and what its makers promise its readers."""

    name: str
    record: type[msgspec.Struct]
    key: str  # What the message key is
    spread: bool  # True: as many partitions as the inputs; False: one, because its reader needs all of it
    retention_ms: int  # -1: for ever (compacted)
    cleanup: Cleanup = "delete"

    def partitions(self, inputs: int) -> int:
        """How many partitions it has where the input topics have `inputs`."""
        return inputs if self.spread else 1


NIC_COUNTERS = Topic(name="nic-counters", record=NicCounters, key="node", spread=True, retention_ms=48 * HOUR_MS)
NCCL_THROUGHPUT = Topic(
    name="nccl-throughput", record=NcclThroughput, key="node", spread=True, retention_ms=48 * HOUR_MS
)
NODE_PODS = Topic(
    name="node-pods",
    record=NodePods,
    key="node",
    spread=True,
    retention_ms=48 * HOUR_MS,
    cleanup="compact,delete",
)
JOB_SLICES = Topic(name="job-slices", record=JobSlice, key="job", spread=True, retention_ms=48 * HOUR_MS)
JOB_STATES = Topic(name="job-states", record=JobState, key="job", spread=False, retention_ms=48 * HOUR_MS)
EPISODES = Topic(name="episodes", record=Episode, key="episode_id", spread=False, retention_ms=30 * 24 * HOUR_MS)
INCIDENTS = Topic(
    name="incidents", record=Incident, key="incident_id", spread=False, retention_ms=-1, cleanup="compact"
)
STATE = Topic(
    name="state",
    record=StateChunk,
    key="step/partition/owner/chunk",
    spread=True,
    retention_ms=-1,
    cleanup="compact",
)
DEAD_LETTERS = Topic(
    name="dead-letters",
    record=DeadLetter,
    key="topic/partition",
    spread=False,
    retention_ms=14 * 24 * HOUR_MS,
)
PIPELINE_HEALTH = Topic(
    name="pipeline-health",
    record=PipelineHealth,
    key="component/instance",
    spread=False,
    retention_ms=48 * HOUR_MS,
)

INPUTS = (NIC_COUNTERS, NCCL_THROUGHPUT, NODE_PODS)
ALL = (
    *INPUTS,
    JOB_SLICES,
    JOB_STATES,
    EPISODES,
    INCIDENTS,
    STATE,
    DEAD_LETTERS,
    PIPELINE_HEALTH,
)
BY_NAME = {topic.name: topic for topic in ALL}
