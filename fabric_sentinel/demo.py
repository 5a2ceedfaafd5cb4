"""The whole line on one machine: embedded broker and store, simulated nodes, the real worker and sinks between them."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fabric_sentinel import render, wiring
from fabric_sentinel.broker import BrokerError, EmbeddedBroker
from fabric_sentinel.children import ChildFailedError, Children
from fabric_sentinel.incident_json import to_json
from fabric_sentinel.settings import Settings, describe
from fabric_sentinel.shell import emit
from producers.simulate.scenario import demo_scenario
from sinks.clickhouse.query import read_incidents
from sinks.clickhouse.store import Store, StoreError
from streams.contract.errors import InvalidRecordError
from streams.contract.findings import Incident
from streams.contract.kafka import KafkaConnection
from streams.contract.ticks import tick_of_us
from streams.contract.topics import ALL, INCIDENTS
from streams.contract.wire import Decoder
from streams.kafka_log import follow
from streams.record import record
from streams.recording import RecordingError

CLUSTER = "demo"
PARTITIONS = 4
START_AFTER_S = 4.0  # The worker and the sinks find their partitions before the first record
SETTLE_S = 8.0  # The last tick closes, its findings are written
STOP_GRACE_S = 15.0


class DemoError(Exception):
    """Why the demo cannot go on, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """How to show the demo, and where it keeps its data."""

    data: Path
    seed: int = 1
    quiet: bool = False
    as_json: bool = False
    recording: Path | None = None


def run(demo: DemoSettings, settings: Settings) -> None:
    """Play the scenario, show the incidents as they are found and as ClickHouse has them; raises DemoError."""
    console = Console(file=sys.stderr, quiet=demo.quiet, highlight=False, soft_wrap=True)
    dsn = _dsn(demo)
    began_tick = tick_of_us(time.time_ns() // 1000)
    _refuse_second_demo(demo, dsn)
    console.print(f"fabric-sentinel {wiring.code_version()} demo: simulated nodes, everything else is real")
    try:
        with (
            EmbeddedBroker({topic.name: topic.partitions(PARTITIONS) for topic in ALL}) as broker,
            Children(demo.data / "logs", _environment(broker.bootstrap, dsn)) as children,
        ):
            connection = KafkaConnection(bootstrap=broker.bootstrap)
            metrics_port = _free_port()
            children.start("stream", ["stream"])
            children.start("sink-clickhouse", ["sink", "clickhouse"])
            children.start("sink-prometheus", ["sink", "prometheus", "--port", str(metrics_port)])
            children.start("simulate", ["simulate", "--seed", str(demo.seed), "--start-after", str(START_AFTER_S)])
            console.print(f"  broker {broker.bootstrap}, metrics http://127.0.0.1:{metrics_port}/metrics")
            console.print(f"  data and logs in {demo.data}")
            _watch(connection, children, console)
            if demo.recording is not None:
                _record(connection, demo.recording, settings)
            children.stop("simulate", grace_seconds=STOP_GRACE_S)
            children.stop("stream", grace_seconds=STOP_GRACE_S)
            children.stop("sink-clickhouse", grace_seconds=STOP_GRACE_S)
            found = _stored(dsn, began_tick)
    except (BrokerError, ChildFailedError, RecordingError, StoreError) as error:
        raise DemoError(str(error)) from error
    _show(found, demo, console)


def _environment(bootstrap: str, dsn: str) -> dict[str, str]:
    return {
        "FABRIC_SENTINEL_CLUSTER": CLUSTER,
        "FABRIC_SENTINEL_KAFKA__BOOTSTRAP": bootstrap,
        "FABRIC_SENTINEL_KAFKA__SECURITY_PROTOCOL": "PLAINTEXT",
        "FABRIC_SENTINEL_TOPICS__PARTITIONS": str(PARTITIONS),
        "FABRIC_SENTINEL_TOPICS__REPLICATION": "1",
        "FABRIC_SENTINEL_CLICKHOUSE__DSN": dsn,
        "FABRIC_SENTINEL_CLICKHOUSE__SAMPLE_SECONDS": "1",
        "FABRIC_SENTINEL_STREAM__METRICS_PORT": "0",
        "FABRIC_SENTINEL_LOG_FORMAT": "json",
    }


def _watch(connection: KafkaConnection, children: Children, console: Console) -> None:
    """Show what happens, and each incident as its verdict changes, until the scenario has been told and judged."""
    total_s = START_AFTER_S + demo_scenario().seconds + SETTLE_S
    began = time.monotonic()
    decode = Decoder(INCIDENTS)
    told: dict[str, str] = {}
    with _bar(console, total_s) as progress:

        def over() -> bool:
            elapsed = time.monotonic() - began
            children.check()
            progress(elapsed)
            return elapsed > total_s

        for message in follow(connection, [INCIDENTS.name], stop=over):
            try:
                incident = cast(Incident, decode(message.value))
            except InvalidRecordError:
                continue
            if incident.merged_into is None and told.get(incident.incident_id) != incident.verdict:
                told[incident.incident_id] = incident.verdict
                elapsed = time.monotonic() - began
                console.print(f"  {elapsed:5.1f} s  {incident.verdict}: {render.headline(incident)}")


@contextmanager
def _bar(console: Console, total_s: float) -> Iterator[Callable[[float], None]]:
    columns = (TextColumn("  {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("watching three nodes", total=total_s)
        yield lambda elapsed: progress.update(task, completed=elapsed)


def _record(connection: KafkaConnection, path: Path, settings: Settings) -> None:
    record(
        connection,
        path,
        cluster=CLUSTER,
        version=wiring.code_version(),
        partitions=PARTITIONS,
        settings=describe(settings),
    )


def _stored(dsn: str, began_tick: int) -> list[Incident]:
    store = Store(dsn)
    try:
        return [incident for incident in read_incidents(store) if incident.onset_tick >= began_tick]
    finally:
        store.close()


def _show(found: list[Incident], demo: DemoSettings, console: Console) -> None:
    if not found:
        raise DemoError(f"no incident was found; the logs are in {demo.data / 'logs'}")
    if demo.as_json:
        for incident in found:
            emit(to_json(incident))
        return
    for incident in found:
        sys.stdout.write("\n")
        render.show(incident, sys.stdout)
    sys.stdout.flush()
    console.print("\nThe same from ClickHouse:")
    elsewhere = demo.data != Path.cwd() / ".fabric-sentinel"
    store = f"FABRIC_SENTINEL_CLICKHOUSE__DSN={_dsn(demo)} " if elsewhere else ""
    question = "SELECT verdict, kind, causes.pod, victims.job FROM incidents_current ORDER BY onset"
    console.print(f'  {store}{_program()} sql "{question}"')


def _dsn(demo: DemoSettings) -> str:
    return f"chdb://{demo.data / 'clickhouse'}"


def _program() -> str:
    """How this was started: `make demo` leaves nothing on the PATH."""
    called = Path(sys.argv[0])
    return "fabric-sentinel" if called.name == "__main__.py" or shutil.which(called.name) else str(called)


def _refuse_second_demo(demo: DemoSettings, dsn: str) -> None:
    """One line when another demo holds this folder, when there is no room, or when the recording is there already."""
    if demo.recording is not None and demo.recording.exists():
        raise DemoError(f"{demo.recording} exists: name a new folder with --record")
    demo.data.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(demo.data).free < 1 << 30:
        raise DemoError(f"less than 1 GiB is free at {demo.data}: make room, or choose another folder with --data")
    if (demo.data / "clickhouse").is_dir():
        try:
            Store(dsn).close()
        except StoreError as error:
            raise DemoError(f"{error}; wait for it, or choose another folder with --data") from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
