"""The host's side of the whole line: real Kafka, the stream worker, the ClickHouse sink and the pods' file."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from fabric_sentinel.children import Children
from tests.paths import cache_dir
from tests.services.kafka import Kafka
from tests.services.process import wait_until
from tests.vm.conftest import Boot

GUEST_SECONDS = 600
STOP_GRACE_S = 60.0
DRAIN_S = 180.0
FLUSH_TICKS = 20  # as guest/whole_line.sh sets it
# The emulated agent is late by seconds when other builds run; a real one would be called silent after 3 s.
NODE_SILENT_TICKS = 200
PODS = """\
nodes:
  - {name: node-a, gpu_model: NVIDIA H100 80GB HBM3, gpu_hour_price: 2.50, currency: USD}
pods:
  - uid: 11111111-aaaa-4aaa-8aaa-111111111111
    namespace: team-llm
    name: pretrain-worker-0
    node: node-a
    tenant: team-llm
    job: {kind: PyTorchJob, name: pretrain, gpus_total: 8}
    gpus: 8
  - {uid: 22222222-bbbb-4bbb-8bbb-222222222222, namespace: team-etl, name: copier-0, node: node-a, tenant: team-etl}
  - {uid: 33333333-cccc-4ccc-8ccc-333333333333, namespace: team-dev, name: churn-0, node: node-a, tenant: team-dev}
  - {uid: 44444444-dddd-4ddd-8ddd-444444444444, namespace: team-dev, name: churn-1, node: node-a, tenant: team-dev}
"""


@dataclass(frozen=True, kw_only=True)
class Line:
    """What a run of the whole line left: the guest's files, and the store that the sink wrote."""

    folder: Path
    dsn: str

    def sql(self, query: str) -> list[dict[str, Any]]:
        """Rows as ClickHouse has them, read by the command that people use."""
        return self._lines("sql", "--json", query)

    def incidents(self) -> list[dict[str, Any]]:
        """Every incident, as the stable interface prints it."""
        return self._lines("incidents", "--json")

    def missed_ticks(self) -> float:
        """The part of its ticks that the agent came too late for: how starved the emulated machine was."""
        (row,) = self.sql("SELECT counts FROM pipeline_health_current WHERE component = 'agent'")
        counts = {name: int(value) for name, value in row["counts"].items()}
        return counts["late_ticks"] / (counts["flushes"] * FLUSH_TICKS)

    def _lines(self, *arguments: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "fabric_sentinel", *arguments],
            env=os.environ | {"FABRIC_SENTINEL_CLICKHOUSE__DSN": self.dsn},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


def run_line(kafka: Kafka, boot: Boot, folder: Path) -> Line:
    """Start everything on the host, let the guest play its scenes, and stop everything in the order of the flow."""
    folder.mkdir(parents=True, exist_ok=True)
    dsn = f"chdb://{folder / 'clickhouse'}"
    pods_file = folder / "pods.yaml"
    pods_file.write_text(PODS)
    environment = {
        "FABRIC_SENTINEL_CLUSTER": "lab",
        "FABRIC_SENTINEL_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "FABRIC_SENTINEL_TOPICS__REPLICATION": "1",
        "FABRIC_SENTINEL_TOPICS__PARTITIONS": "4",  # 32 cost the worker half a core that the emulated CPUs need
        "FABRIC_SENTINEL_CLICKHOUSE__DSN": dsn,
        "FABRIC_SENTINEL_PODS__METRICS_PORT": "0",
        "FABRIC_SENTINEL_STREAM__METRICS_PORT": "0",
        "FABRIC_SENTINEL_STREAM__NODE_SILENT_TICKS": str(NODE_SILENT_TICKS),
        "FABRIC_SENTINEL_LOG_FORMAT": "json",
    }
    command(["topics", "apply"], environment)
    with Children(folder / "logs", environment) as children:
        children.start("stream", ["stream"])
        children.start("sink", ["sink", "clickhouse"])
        children.start("pods", ["pods", "--file", str(pods_file)])
        libraries = cache_dir() / "nccl" / "2.32.3" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        guest = boot(
            "whole_line.sh",
            name="line",
            seconds=GUEST_SECONDS,
            arguments=(str(libraries), kafka.guest_bootstrap, sys.executable),
        )
        children.check()
        ended = time.monotonic()
        silent_s = NODE_SILENT_TICKS / 10 + 5  # the clock runs on, so that the last ticks can close without the node
        wait_until(lambda: time.monotonic() > ended + silent_s, "the node is silent", silent_s + 1)
        children.stop("pods", grace_seconds=STOP_GRACE_S)
        wait_until(lambda: lag(kafka) == 0, "all that was sent is judged and stored", DRAIN_S)
        command(["record", str(folder / "recording")], environment)
        for name in ("stream", "sink"):
            children.stop(name, grace_seconds=STOP_GRACE_S)
    return Line(folder=guest, dsn=dsn)


def command(arguments: Sequence[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fabric_sentinel", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr[-2000:]}"


def lag(kafka: Kafka) -> int:
    """Records that the worker or the sink has not yet finished with, over all of their partitions."""
    admin = AdminClient(kafka.client())
    groups = [group.group_id for group in admin.list_consumer_groups().result(10).valid]
    behind = 0
    for group in groups:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        committed = asked[group].result(10).topic_partitions
        ends = admin.list_offsets({TopicPartition(p.topic, p.partition): OffsetSpec.latest() for p in committed})
        behind += sum(
            ends[place].result(10).offset - committed_at.offset
            for place, committed_at in zip(ends, committed, strict=True)
        )
    return behind
