"""The demo: names the culprit from end to end, repeats itself from a recording, and leaves nothing running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from producers.simulate.truth import truth
from tests.paths import heed_interrupts

DEMO_TIMEOUT_S = 240
POINTS = 0.05


class Demo(NamedTuple):
    data: Path
    recording: Path
    incidents: list[dict[str, object]]
    stderr: str


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fabric_sentinel", *arguments]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    data, recording = folder / "data", folder / "recording"
    done = subprocess.run(
        command("demo", "--headless", "--json", "--data", str(data), "--record", str(recording)),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEMO_TIMEOUT_S,
        cwd=folder,
    )
    logs = "\n".join(f"== {log.name}\n{log.read_text()[-2000:]}" for log in (data / "logs").glob("*.log"))
    assert done.returncode == 0, done.stderr + logs
    return Demo(data, recording, [json.loads(line) for line in done.stdout.splitlines()], done.stderr)


def named(incidents: list[dict[str, object]]) -> list[dict[str, object]]:
    return [incident for incident in incidents if incident["causes"]]


@pytest.mark.timeout(DEMO_TIMEOUT_S + 60)
def test_the_culprit_and_its_victims_are_named_with_their_losses(demo: Demo) -> None:
    told = truth(seed=1, start_tick=0)

    (incident,) = named(demo.incidents)

    (cause,) = incident["causes"]  # type: ignore[misc, attr-defined]
    assert (cause["namespace"], cause["pod"], cause["node"]) == (told.namespace, told.pod, told.node)
    assert incident["verdict"] == "confirmed"
    losses = {victim["job"]: victim["loss"] for victim in incident["victims"]}  # type: ignore[attr-defined]
    assert losses.keys() == told.losses_e4.keys()
    for job, loss_e4 in told.losses_e4.items():
        assert losses[job] == pytest.approx(loss_e4 / 10_000, abs=POINTS)
    assert incident["total_cost"] is not None


def test_the_job_that_slowed_itself_is_reported_and_nobody_is_named(demo: Demo) -> None:
    told = truth(seed=1, start_tick=0)

    (incident,) = [one for one in demo.incidents if not one["causes"]]

    assert incident["verdict"] == "not_fabric"
    assert [victim["job"] for victim in incident["victims"]] == [told.self_slow_job]  # type: ignore[attr-defined]


def test_the_recording_replays_to_the_incidents_that_clickhouse_holds(demo: Demo) -> None:
    done = subprocess.run(
        command("replay", str(demo.recording), "--json"), capture_output=True, text=True, check=True, timeout=120
    )

    assert [json.loads(line) for line in done.stdout.splitlines()] == demo.incidents


def test_sql_shows_the_same_from_the_store_that_the_demo_left(demo: Demo) -> None:
    done = subprocess.run(
        command("sql", "--json", "SELECT incident_id, verdict FROM incidents_current ORDER BY onset_tick, incident_id"),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "FABRIC_SENTINEL_CLICKHOUSE__DSN": f"chdb://{demo.data / 'clickhouse'}"},
    )

    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows == [{"incident_id": one["incident_id"], "verdict": one["verdict"]} for one in demo.incidents]


@contextlib.contextmanager
def running_demo(data: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command("demo", "--headless", "--data", str(data)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found |= {int(child)} | descendants(int(child))
    return found


def wait_until(what: str, holds: object, *, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in status(pid)}


def status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "\nState:\tZ"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_the_demo_ends_nothing_is_left_running(tmp_path: Path, signal_number: signal.Signals) -> None:
    with running_demo(tmp_path / "data") as process:
        wait_until("five children", lambda: len(descendants(process.pid)) >= 5)
        children = descendants(process.pid)

        process.send_signal(signal_number)

        wait_until("the end of the demo and its children", lambda: not alive({process.pid, *children}))


def test_a_second_demo_in_the_same_folder_says_what_is_in_its_way(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_demo(data) as first:
        log = data / "logs" / "sink-clickhouse.log"
        wait_until("the first demo's store", lambda: (data / "clickhouse" / "status").exists() and log.exists())

        second = subprocess.run(
            command("demo", "--headless", "--data", str(data)), capture_output=True, text=True, check=False, timeout=60
        )

        assert second.returncode == 1
        assert "holds the embedded store" in second.stderr
        assert "--data" in second.stderr
        assert len(second.stderr.splitlines()) == 1
        assert first.poll() is None
