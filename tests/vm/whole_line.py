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

from fabric_sentinel.children import Children
from tests.paths import cache_dir
from tests.services.kafka import Kafka
from tests.services.process import wait_until
from tests.vm.conftest import Boot

GUEST_SECONDS = 600
STOP_GRACE_S = 60.0
SETTLE_S = 20.0  # the worker closes the last ticks, the sink writes them
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
    folder.mkdir(parents=True)
    dsn = f"chdb://{folder / 'clickhouse'}"
    pods_file = folder / "pods.yaml"
    pods_file.write_text(PODS)
    environment = {
        "FABRIC_SENTINEL_CLUSTER": "lab",
        "FABRIC_SENTINEL_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "FABRIC_SENTINEL_TOPICS__REPLICATION": "1",
        "FABRIC_SENTINEL_CLICKHOUSE__DSN": dsn,
        "FABRIC_SENTINEL_PODS__METRICS_PORT": "0",
        "FABRIC_SENTINEL_STREAM__METRICS_PORT": "0",
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
        settle_until = time.monotonic() + SETTLE_S
        wait_until(lambda: time.monotonic() > settle_until, "the last ticks are judged", SETTLE_S + 1)
        command(["record", str(folder / "recording")], environment)
        for name in ("pods", "stream", "sink"):
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
