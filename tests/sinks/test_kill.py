"""kill -9 of the sink between two inserts of a batch: every row is there, and there once."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fabric_sentinel.broker import EmbeddedBroker
from sinks.clickhouse.store import Store
from streams.contract.topics import NIC_COUNTERS
from tests.paths import repo_root
from tests.sinks.records import nic
from tests.sinks.running import TOPIC_COUNTS, committed, produce, wait_for

DEATHS = (2, 3, 4, 6, 9)  # After so many inserts: of a first batch, of its repetition, of a later one
CHUNK = 200  # Messages that come, for each of two partitions, before each life
ROWS_A_MESSAGE, SAMPLES_A_MESSAGE = 5, 9


@pytest.mark.services
def test_no_kill_loses_a_row_or_doubles_one(tmp_path: Path, new_embedded_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = new_embedded_broker(TOPIC_COUNTS).bootstrap
    dsn = f"chdb://{tmp_path}/store"

    for life, inserts in enumerate((*DEATHS, 0)):
        seqs = range(life * CHUNK + 1, (life + 1) * CHUNK + 1)
        for partition in (0, 1):
            produce(broker, NIC_COUNTERS, [nic(f"node-{partition}", seq=seq) for seq in seqs], partition)
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.sinks.sink_process", broker, dsn, str(inserts)], cwd=repo_root()
        )
        if inserts:
            assert child.wait(60) == -signal.SIGKILL
    messages = 2 * (len(DEATHS) + 1) * CHUNK
    wait_for(lambda: _progress(broker) == messages, "the end of both partitions")
    child.terminate()
    assert child.wait(60) == 0

    store = Store(dsn)
    raw = store.query("SELECT count(), uniqExact(node, tick, counter) FROM port_runs").rows
    shown = store.query("SELECT count() FROM port_samples").rows
    store.close()
    assert raw == [(messages * ROWS_A_MESSAGE,) * 2]
    assert shown == [(messages * SAMPLES_A_MESSAGE,)]


def _progress(broker: str) -> int:
    return sum(max(0, committed(broker, "killed", NIC_COUNTERS, partition)[0]) for partition in (0, 1))
