"""A recording of a live run replays to the findings that the worker published, on a laptop without Java."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from fabric_sentinel.broker import EmbeddedBroker
from streams.contract.findings import Incident
from streams.contract.kafka import KafkaConnection
from streams.contract.topics import ALL, INCIDENTS, INPUTS, JOB_STATES
from streams.contract.wire import Decoder
from streams.core.core import Core, CoreSettings
from streams.kafka_log import LogMessage, newest_before, newest_before_commit, read_to_end
from streams.record import record
from streams.recording import read_recording
from streams.replay import ReplayResult, replay
from streams.topics_admin import apply
from tests.paths import repo_root
from tests.services.kafka import Kafka
from tests.services.process import ServiceProcess, wait_until
from tests.streams.simulated import START_TICK, demo_messages

PARTITIONS = 2
SECONDS = 100
pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def connection(new_embedded_broker: Callable[..., EmbeddedBroker]) -> KafkaConnection:
    broker = new_embedded_broker({topic.name: topic.partitions(PARTITIONS) for topic in ALL})
    return KafkaConnection(bootstrap=broker.bootstrap)


@pytest.fixture
def worker(connection: KafkaConnection, tmp_path: Path) -> Iterator[ServiceProcess]:
    log = tmp_path / "worker.log"
    command = [sys.executable, "-m", "tests.streams.worker_process", connection.bootstrap, str(PARTITIONS), "real"]
    made = ServiceProcess(
        "worker",
        command,
        tmp_path,
        lambda: log.exists() and "partitions assigned" in log.read_text(),
        env={"PYTHONPATH": str(repo_root())},
    )
    made.start()
    yield made
    made.stop(20)


def produce(connection: KafkaConnection, messages: list[LogMessage]) -> None:
    producer = Producer({**connection.confluent(), "linger.ms": 5, "log_level": 2})
    for message in messages:
        producer.produce(
            message.topic,
            message.value,
            key=message.key,
            partition=message.partition,
            timestamp=message.broker_time_ms or 0,
            headers=list(message.headers.items()),
        )
        producer.poll(0)
    assert producer.flush(60) == 0


def recorded(connection: KafkaConnection, path: Path, **options: object) -> None:
    record(connection, path, cluster="simulated", version="test", partitions=PARTITIONS, **options)  # type: ignore[arg-type]


def published(connection: KafkaConnection) -> dict[str, Incident]:
    last: dict[str, Incident] = {}
    for message in read_to_end(connection, [INCIDENTS.name]):
        incident = Decoder(INCIDENTS)(message.value)
        assert isinstance(incident, Incident)
        if incident.incident_id not in last or incident.revision >= last[incident.incident_id].revision:
            last[incident.incident_id] = incident
    return last


def replayed(path: Path) -> ReplayResult:
    return replay(path, CoreSettings())


def test_a_live_recording_replays_to_the_incidents_that_were_published(
    connection: KafkaConnection, worker: ServiceProcess, tmp_path: Path
) -> None:
    done = threading.Event()
    path = tmp_path / "recording"
    recorder = threading.Thread(target=recorded, args=(connection, path), kwargs={"stop": done.is_set})
    recorder.start()
    history = list(demo_messages(SECONDS, PARTITIONS))
    produce(connection, history)
    in_memory = replay_of(history)
    wait_until(lambda: published(connection) == in_memory, "the worker has published all incidents", 60)
    done.set()
    recorder.join(30)

    result = replayed(path)

    assert result.incidents == in_memory
    assert result.records == len(history)
    assert (result.dead_letters, result.cold_start) == ([], True)
    assert any(incident.causes for incident in result.incidents_by_onset())
    assert worker.pid is not None


def replay_of(history: list[LogMessage]) -> dict[str, Incident]:
    core = Core(CoreSettings(), PARTITIONS)
    decoders = {topic.name: Decoder(topic) for topic in INPUTS}
    last: dict[str, Incident] = {}
    for message in history:
        for finding in core.apply(message.topic, message.partition, decoders[message.topic](message.value)):  # type: ignore[arg-type]
            if isinstance(finding, Incident):
                last[finding.incident_id] = finding
    return last


@pytest.mark.services
def test_a_range_of_time_is_recorded_with_the_pods_that_were_known_at_its_beginning(
    new_kafka: Callable[..., Kafka], tmp_path: Path
) -> None:
    kafka = new_kafka()  # The embedded broker cannot look offsets up by time
    connection = KafkaConnection(bootstrap=kafka.start())
    apply(connection, partitions=PARTITIONS, replication=1)
    produce(connection, list(demo_messages(20, PARTITIONS)))
    from_ms, until_ms = (START_TICK + 100) * 100, (START_TICK + 150) * 100

    recorded(connection, tmp_path / "r", from_ms=from_ms, until_ms=until_ms)

    times = [(item.message.topic, item.message.broker_time_ms or 0) for item in read_recording(tmp_path / "r")]
    assert {topic for topic, _ in times} == {topic.name for topic in INPUTS}
    assert all(time_ms <= until_ms for _, time_ms in times)
    assert {topic for topic, time_ms in times if time_ms < from_ms} == {"node-pods"}
    early = [item.message for item in read_recording(tmp_path / "r") if (item.message.broker_time_ms or 0) < from_ms]
    assert len(early) == len({(message.partition, message.key) for message in early})


def test_what_a_compacted_topic_has_told_is_each_keys_newest_message(connection: KafkaConnection) -> None:
    history = [m for m in demo_messages(20, PARTITIONS) if m.topic == "node-pods"]
    produce(connection, history)

    told = newest_before(connection, "node-pods", (START_TICK + 10_000) * 100)

    expected = {(m.partition, m.key): m.value for m in history}
    assert {(m.partition, m.key): m.value for m in told} == expected
    assert newest_before_commit(connection, "node-pods", group="nobody", partitions={0, 1}) == []


def test_an_empty_topic_gives_an_empty_recording(connection: KafkaConnection, tmp_path: Path) -> None:
    recorded(connection, tmp_path / "r")
    assert list(read_recording(tmp_path / "r")) == []
    assert replayed(tmp_path / "r").incidents == {}
    assert list(read_to_end(connection, [JOB_STATES.name])) == []


def test_a_message_that_is_no_record_is_kept_as_its_bytes(connection: KafkaConnection, tmp_path: Path) -> None:
    produce(connection, [LogMessage(topic="nic-counters", partition=1, offset=0, key=b"k", value=b"rubbish")])
    recorded(connection, tmp_path / "r")
    (letter,) = replayed(tmp_path / "r").dead_letters
    assert (letter.value, letter.partition, letter.component) == (b"rubbish", 1, "replay")
