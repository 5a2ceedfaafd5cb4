"""A full disk under the embedded store: told, survived, recovered, nothing lost."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
import structlog

from fabric_sentinel.broker import EmbeddedBroker
from sinks.clickhouse.sink import ClickHouseSettings, run
from sinks.clickhouse.store import Store
from streams.contract.kafka import KafkaConnection
from streams.contract.plumbing import DeadLetter, HealthStatus, PipelineHealth
from streams.contract.topics import DEAD_LETTERS, PIPELINE_HEALTH
from tests.paths import need
from tests.sinks.records import dead_letter
from tests.sinks.running import QUICK, SESSION_S, TOPIC_COUNTS, produce, read_all, running, wait_for

LETTER_BYTES = 400_000
LETTERS = 60  # 24 MB that do not compress, more than the small disk holds


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    need(os.geteuid() == 0 and shutil.which("mount"), "a small file system needs root", "run the test as root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    need(mounted.returncode == 0, f"tmpfs cannot be mounted: {mounted.stderr.strip()}", "allow mounts (CAP_SYS_ADMIN)")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.services
def test_a_full_disk_is_told_and_once_there_is_room_everything_is_stored(
    small_disk: Path, new_embedded_broker: Callable[..., EmbeddedBroker]
) -> None:
    broker = new_embedded_broker(TOPIC_COUNTS).bootstrap
    letters = [_letter(offset) for offset in range(LETTERS)]
    settings = ClickHouseSettings(
        kafka=KafkaConnection(bootstrap=broker),
        cluster="lab",
        instance="here",
        dsn=f"chdb://{small_disk}/store",
        group="full",
        limits=QUICK,
        health_every_s=0.2,
        retry_first_s=0.2,
        retry_most_s=0.5,
        session_timeout_s=SESSION_S,
    )

    with structlog.testing.capture_logs() as logs, running(lambda stop: run(settings, stop)):
        for start in range(0, LETTERS, 10):  # The embedded broker keeps 5 MB of a partition
            if not _told(logs, "store"):
                produce(broker, DEAD_LETTERS, letters[start : start + 10])
                produced = start + 10
                wait_for(lambda: _told(logs, "store") or _stored(settings.dsn) >= produced, "stored or full")  # noqa: B023
        wait_for(lambda: _told(logs, "store"), "the line that says so")
        wait_for(lambda: _reports(broker)[-1].status is HealthStatus.DOWN, "the report that says so")
        full = _reports(broker)[-1]
        subprocess.run(["mount", "-o", "remount,size=256m", small_disk], check=True)
        wait_for(lambda: _stored(settings.dsn) == produced, "all letters")

    assert full.message.startswith("store: the disk is full")
    assert [entry["event"] for entry in logs if entry.get("part") == "store"][-1] == "works again"
    assert 10 < produced < LETTERS


def _letter(offset: int) -> DeadLetter:
    return msgspec.structs.replace(dead_letter(), offset=offset, value=os.urandom(LETTER_BYTES))


def _told(logs: Sequence[Mapping[str, object]], part: str) -> bool:
    return any(entry.get("part") == part for entry in logs)


def _stored(dsn: str) -> int:
    store = Store(dsn)
    try:
        return int(str(store.query("SELECT count() FROM dead_letters_current").rows[0][0]))
    except Exception:  # noqa: BLE001 (no schema yet, or the disk is full)
        return -1
    finally:
        store.close()


def _reports(broker: str) -> list[PipelineHealth]:
    return [
        report
        for report in read_all(broker, PIPELINE_HEALTH, 10_000, patience_s=1.0)
        if isinstance(report, PipelineHealth)
    ]
