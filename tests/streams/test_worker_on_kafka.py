"""The Faust worker on a real Kafka: findings as in memory, nothing lost through rebalance, restart, kill and outage."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from streams.app import GROUP
from streams.contract.errors import RetryableError
from streams.contract.findings import Health, Incident, JobState, Verdict
from streams.contract.inputs import NicCounters
from streams.contract.kafka import PARTITIONER, KafkaConnection
from streams.contract.plumbing import DeadLetter, PipelineHealth
from streams.contract.registry import Registry
from streams.contract.slices import JobSlice
from streams.contract.topics import (
    ALL,
    BY_NAME,
    DEAD_LETTERS,
    EPISODES,
    INCIDENTS,
    JOB_SLICES,
    JOB_STATES,
    NIC_COUNTERS,
)
from streams.contract.wire import Decoder, Encoder
from streams.flow import CONSUMED
from streams.kafka_log import LogMessage, read_to_end
from streams.topics_admin import Created, Difference, apply, cat, partition_counts
from tests.paths import repo_root
from tests.services.kafka import Kafka
from tests.services.process import ServiceProcess, wait_until
from tests.services.registry import Registry as RealRegistry
from tests.streams.memory_log import MemoryLog
from tests.streams.simulated import START_TICK, demo_messages

pytestmark = [pytest.mark.services, pytest.mark.timeout(280)]

PARTITIONS = 4
SECONDS = 90


class Cluster:
    """A broker of the test's own with our topics, and any number of workers on it."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka = kafka
        self.connection = KafkaConnection(bootstrap=kafka.bootstrap)
        self._folder = folder
        self.workers: list[ServiceProcess] = []

    def worker(self, core: str, **env: str) -> ServiceProcess:
        """A started worker that holds partitions."""
        name = f"worker{len(self.workers)}"
        command = [sys.executable, "-m", "tests.streams.worker_process", self.kafka.bootstrap, str(PARTITIONS), core]
        log = self._folder / f"{name}.log"
        made = ServiceProcess(
            name,
            command,
            self._folder,
            lambda: log.exists() and "partitions assigned" in log.read_text(),
            env={"PYTHONPATH": str(repo_root()), **env},
        )
        self.workers.append(made)
        made.start()
        return made

    def produce(self, messages: Iterator[LogMessage] | list[LogMessage]) -> None:
        producer = Producer(
            self.kafka.client() | {"partitioner": PARTITIONER, "linger.ms": 5, "compression.type": "zstd"}
        )
        for message in messages:
            producer.produce(
                message.topic,
                message.value,
                key=message.key,
                partition=message.partition,
                headers=list(message.headers.items()),
            )
            producer.poll(0)
        assert producer.flush(60) == 0

    def read(self, topic: str) -> list[LogMessage]:
        return list(read_to_end(self.connection, [topic]))

    def all_committed(self) -> bool:
        """True when the workers have acknowledged everything that lies in the topics that they read."""
        consumer = Consumer(self.kafka.client() | {"group.id": GROUP})
        places = [
            TopicPartition(topic.name, number) for topic in CONSUMED for number in range(topic.partitions(PARTITIONS))
        ]
        ends = [consumer.get_watermark_offsets(place, timeout=20)[1] for place in places]
        done = [place.offset for place in consumer.committed(places, timeout=20)]
        consumer.close()
        return all(offset == end or not end for offset, end in zip(done, ends, strict=True))

    def ends(self, topic: str) -> int:
        return len(self.read(topic))


@pytest.fixture
def cluster(new_kafka: Callable[..., Kafka], tmp_path: Path) -> Iterator[Cluster]:
    kafka = new_kafka()
    kafka.start()
    made = Cluster(kafka, tmp_path)
    apply(made.connection, partitions=PARTITIONS, replication=1)
    yield made
    for worker in made.workers:
        worker.stop(20)


def nic(node: str, seq: int) -> NicCounters:
    return NicCounters(
        cluster="c", node=node, agent_epoch="e", seq=seq, first_tick=seq * 5, ticks=5, complete_through_tick=seq * 5 + 4
    )


def steady(first_seq: int, last_seq: int, nodes: int = 10) -> Iterator[LogMessage]:
    """Records of some nodes, as the fake core counts them."""
    encode = Encoder(NIC_COUNTERS)
    for seq in range(first_seq, last_seq + 1):
        for node in range(nodes):
            key = f"n{node}".encode()
            yield LogMessage(
                topic=NIC_COUNTERS.name,
                partition=node % PARTITIONS,
                offset=0,
                key=key,
                value=encode(nic(f"n{node}", seq)),
            )


def slices_seen(cluster: Cluster) -> Counter[tuple[str, int]]:
    decode = Decoder(JOB_SLICES)
    seen: Counter[tuple[str, int]] = Counter()
    for message in cluster.read(JOB_SLICES.name):
        piece = decode(message.value)
        assert isinstance(piece, JobSlice)
        if piece.progress is None:
            seen[piece.node, piece.seq] += 1
    return seen


def all_slices(last_seq: int, nodes: int = 10) -> set[tuple[str, int]]:
    return {(f"n{node}", seq) for node in range(nodes) for seq in range(1, last_seq + 1)}


def test_topics_are_created_once_and_what_differs_is_told_and_left_alone(new_kafka: Callable[..., Kafka]) -> None:
    kafka = new_kafka()
    kafka.start()
    connection = KafkaConnection(bootstrap=kafka.bootstrap)

    assert apply(connection, partitions=PARTITIONS, replication=1) == [
        Created(topic=topic.name, partitions=topic.partitions(PARTITIONS)) for topic in ALL
    ]
    assert apply(connection, partitions=PARTITIONS, replication=1) == []

    admin = AdminClient(kafka.client())
    changed = ConfigResource(
        ResourceType.TOPIC,
        "episodes",
        incremental_configs=[ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)],
    )
    for future in [*admin.incremental_alter_configs([changed]).values()]:
        future.result(20)
    for future in admin.create_partitions([NewPartitions("incidents", 3)]).values():
        future.result(20)

    expected = {
        Difference(topic="episodes", what="retention.ms", wanted="2592000000", found="1000"),
        Difference(topic="incidents", what="the number of partitions", wanted="1", found="3"),
    }
    wait_until(lambda: set(apply(connection, partitions=PARTITIONS, replication=1)) == expected, "both told", 20)
    assert set(apply(connection, partitions=PARTITIONS, replication=1)) == expected


def test_findings_on_kafka_are_byte_for_byte_those_in_memory(cluster: Cluster) -> None:
    memory = MemoryLog(PARTITIONS)
    for message in demo_messages(SECONDS, PARTITIONS):
        memory.put(message)

    cluster.worker("real")
    cluster.produce(list(demo_messages(SECONDS, PARTITIONS)))

    topics = (JOB_STATES.name, EPISODES.name)
    expected = {topic: {m.value for m in memory.sent[topic]} for topic in topics}
    assert all(expected.values())
    wait_until(
        lambda: (
            {m.value for m in cluster.read(JOB_STATES.name)} >= expected[JOB_STATES.name]
            and last_incidents(cluster.read(INCIDENTS.name)) == last_incidents(memory.sent[INCIDENTS.name])
        ),
        "all states and incidents are told",
        90,
    )
    for topic in topics:
        assert {m.value for m in cluster.read(topic)} == expected[topic], topic
    assert any(incident.causes for incident in last_incidents(cluster.read(INCIDENTS.name)).values())
    assert cluster.read(DEAD_LETTERS.name) == []


def last_incidents(messages: list[LogMessage]) -> dict[str, Incident]:
    """The findings: each incident's highest revision. (Those on the way there depend on what comes first.)"""
    last: dict[str, Incident] = {}
    for incident in map(as_incident, messages):
        if incident.incident_id not in last or incident.revision >= last[incident.incident_id].revision:
            last[incident.incident_id] = incident
    return last


def test_a_joining_and_a_leaving_worker_lose_nothing(cluster: Cluster) -> None:
    first = cluster.worker("fake")
    cluster.produce(steady(1, 100))
    second = cluster.worker("fake")
    cluster.produce(steady(101, 200))
    wait_until(lambda: len(slices_seen(cluster)) == 2000, "both workers have done their part", 60)
    first.stop()
    cluster.produce(steady(201, 300))
    wait_until(lambda: len(slices_seen(cluster)) >= 3000, "the remaining worker takes over", 60)
    second.stop()

    seen = slices_seen(cluster)
    assert set(seen) == all_slices(300)
    print(f"rebalances: 0 of 3000 lost, {sum(seen.values()) - 3000} sent twice")


def test_a_worker_frozen_beyond_its_session_loses_nothing_and_works_on(cluster: Cluster) -> None:
    frozen = cluster.worker("fake")
    cluster.worker("fake")
    cluster.produce(steady(1, 50))
    wait_until(lambda: len(slices_seen(cluster)) == 500, "both work", 60)
    frozen.pause()
    cluster.produce(steady(51, 100))
    wait_until(lambda: len(slices_seen(cluster)) == 1000, "the other takes over when the session has expired", 60)

    frozen.resume()
    cluster.produce(steady(101, 150))

    wait_until(lambda: len(slices_seen(cluster)) == 1500, "work goes on", 90)
    seen = slices_seen(cluster)
    assert set(seen) == all_slices(150)
    print(f"frozen beyond its session: 0 of 1500 lost, {sum(seen.values()) - 1500} sent twice")


def test_kill_9_loses_no_message_and_says_what_it_costs(cluster: Cluster) -> None:
    worker = cluster.worker("fake")
    cluster.produce(steady(1, 150))
    wait_until(lambda: len(slices_seen(cluster)) > 300, "work is in full swing", 60)
    worker.kill9()
    killed = time.monotonic()
    before = cluster.ends(JOB_SLICES.name)
    cluster.produce(steady(151, 300))
    cluster.worker("fake")
    wait_until(lambda: cluster.ends(JOB_SLICES.name) > before, "the next worker goes on", 90)
    resumed_s = time.monotonic() - killed
    wait_until(lambda: len(slices_seen(cluster)) >= 3000, "everything is done", 90)

    seen = slices_seen(cluster)
    assert set(seen) == all_slices(300)
    print(f"kill -9: 0 of 3000 lost, {sum(seen.values()) - 3000} sent twice, resumed after {resumed_s:.1f} s")


def test_what_a_kill_9_costs_the_detector_today(cluster: Cluster) -> None:
    """State is in memory: jobs keep their names, but their baselines and an open episode are gone.

    Killed 10 s into a slowdown of 20 s: its incident stays `suspected` for ever, and the jobs are judged again only
    after they have warmed up. The snapshots of a later step turn these assertions round.
    """
    kill_ms = (START_TICK + 500) * 100
    history = list(demo_messages(100, PARTITIONS))
    worker = cluster.worker("real")
    cluster.produce([message for message in history if (message.broker_time_ms or 0) < kill_ms])
    wait_until(lambda: bool(cluster.read(INCIDENTS.name)), "a culprit is suspected", 60)
    wait_until(cluster.all_committed, "all is judged and committed", 60)
    worker.kill9()
    before = {message.offset for message in cluster.read(JOB_STATES.name)}
    cluster.produce([message for message in history if (message.broker_time_ms or 0) >= kill_ms])
    cluster.worker("real")
    wait_until(lambda: newest_state_tick(cluster) >= START_TICK + 950, "the next worker has judged the rest", 90)

    states = [as_state(message) for message in cluster.read(JOB_STATES.name) if message.offset not in before]
    jobs = {as_state(message).job for message in cluster.read(JOB_STATES.name)}
    judged = [state.tick for state in states if state.health in {Health.HEALTHY, Health.SLOW}]
    incidents = {m.key: as_incident(m) for m in cluster.read(INCIDENTS.name)}

    assert jobs == {"team-vision/PyTorchJob/detector", "team-chat/PyTorchJob/finetune", "team-llm/PyTorchJob/pretrain"}
    open_ones = [incident for incident in incidents.values() if incident.recovered_tick is None]
    assert {incident.verdict for incident in open_ones} == {Verdict.SUSPECTED}
    blind_s = (min(judged) - states[0].tick) / 10
    assert blind_s > 10
    print(f"kill -9 in an episode: no baseline for {blind_s:.0f} s, {len(open_ones)} incidents never confirmed")


def as_state(message: LogMessage) -> JobState:
    state = Decoder(JOB_STATES)(message.value)
    assert isinstance(state, JobState)
    return state


def as_incident(message: LogMessage) -> Incident:
    incident = Decoder(INCIDENTS)(message.value)
    assert isinstance(incident, Incident)
    return incident


def newest_state_tick(cluster: Cluster) -> int:
    return max((as_state(message).tick for message in cluster.read(JOB_STATES.name)), default=0)


def test_a_broker_that_goes_and_comes_back_stops_work_for_that_time_only(cluster: Cluster) -> None:
    worker = cluster.worker("fake")
    cluster.produce(steady(1, 50))
    wait_until(lambda: len(slices_seen(cluster)) == 500, "all is well", 60)

    cluster.kafka.kill9()
    time.sleep(5)  # The outage itself
    cluster.kafka.start()
    cluster.produce(steady(51, 100))

    wait_until(lambda: len(slices_seen(cluster)) == 1000, "work goes on", 90)
    assert worker.pid is not None
    assert set(slices_seen(cluster)) == all_slices(100)
    wait_until(lambda: "Kafka works again" in worker.log_path.read_text(), "it says so", 30)
    lines = [line for line in worker.log_path.read_text().splitlines() if "streams.app partitions" not in line]
    assert len(lines) <= 4, lines  # One for each change of state, where aiokafka alone would write a hundred


def test_malformed_messages_become_dead_letters_with_everything_they_had(cluster: Cluster) -> None:
    cluster.worker("fake")
    big = b"\x00" + b"x" * 900_000
    cluster.produce(
        [
            LogMessage(topic="nic-counters", partition=2, offset=0, key=b"k", value=b"rubbish", headers={"h": b"\xff"}),
            LogMessage(topic="node-pods", partition=1, offset=0, key=b"n", value=None),
            LogMessage(topic="nic-counters", partition=3, offset=0, key=b"k", value=big),
            *steady(1, 1),
        ]
    )

    wait_until(lambda: cluster.ends(DEAD_LETTERS.name) == 3 and len(slices_seen(cluster)) == 10, "told and gone on", 60)

    letters: dict[tuple[str, int], DeadLetter] = {}
    for message in cluster.read(DEAD_LETTERS.name):
        letter = Decoder(DEAD_LETTERS)(message.value)
        assert isinstance(letter, DeadLetter)
        letters[letter.topic, letter.partition] = letter
    rubbish = letters["nic-counters", 2]
    assert (rubbish.key, rubbish.value, rubbish.headers, rubbish.offset) == (b"k", b"rubbish", {"h": b"\xff"}, 0)
    assert "no Confluent prefix" in rubbish.reason
    assert letters["node-pods", 1].value is None
    assert letters["nic-counters", 3].value == big


def test_a_worker_waits_for_its_broker_and_says_so_once(new_kafka: Callable[..., Kafka], tmp_path: Path) -> None:
    kafka = new_kafka()
    log = tmp_path / "worker.log"
    command = [sys.executable, "-m", "tests.streams.worker_process", kafka.bootstrap, str(PARTITIONS), "fake"]
    worker = ServiceProcess(
        "worker",
        command,
        tmp_path,
        lambda: log.exists() and "no broker answers" in log.read_text(),
        env={"PYTHONPATH": str(repo_root())},
    )
    worker.start()
    kafka.start()
    wait_until(lambda: "run `fabric-sentinel topics apply`" in log.read_text(), "it misses the topics", 40)
    apply(KafkaConnection(bootstrap=kafka.bootstrap), partitions=PARTITIONS, replication=1)

    wait_until(lambda: "partitions assigned" in log.read_text(), "it works", 60)
    worker.stop()

    text = log.read_text()
    assert text.count("no broker answers") == 1
    assert "brokers and topics are there" in text


def test_topics_with_another_partition_count_are_refused_in_one_line(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "tests.streams.worker_process", cluster.kafka.bootstrap, "7", "fake"]
    done = subprocess.run(command, cwd=repo_root(), capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "nic-counters has 4 partitions, not 7" in last
    assert "set the partition count" in last


def test_health_is_told_every_second_and_names_what_the_steps_count(cluster: Cluster) -> None:
    cluster.worker("fake")
    cluster.produce(steady(1, 10))
    decode = Decoder(BY_NAME["pipeline-health"])

    def told() -> list[PipelineHealth]:
        found = [decode(message.value) for message in cluster.read("pipeline-health")]
        return [record for record in found if isinstance(record, PipelineHealth)]

    wait_until(lambda: any(record.counts.get("judge.slices") == 100 for record in told()), "health counts slices", 60)
    assert {record.component for record in told()} == {"stream"}


def test_cat_spells_packed_numbers_out(cluster: Cluster) -> None:
    cluster.produce([m for m in demo_messages(5, PARTITIONS) if m.topic == "nic-counters"])
    lines = [json.loads(line) for line in cat(cluster.connection, "nic-counters")]
    node = next(line["record"] for line in lines if line["record"]["node"])
    assert len(node["ports"][0]["counters"]["ib/port_xmit_data"]) == node["ticks"] == 5
    assert len(list(cat(cluster.connection, "nic-counters", limit=3))) == 3


def test_a_user_and_password_reach_every_client(new_kafka: Callable[..., Kafka], tmp_path: Path) -> None:
    kafka = new_kafka(users={"admin": "hush-hush", "nobody": "nothing"})
    kafka.start()
    cluster = Cluster(kafka, tmp_path)
    cluster.connection = connection_as(kafka, "admin", "hush-hush")
    apply(cluster.connection, partitions=PARTITIONS, replication=1)

    worker = cluster.worker("fake", USER_NAME="admin", USER_PASSWORD="hush-hush")
    cluster.produce(steady(1, 10))

    wait_until(lambda: len(slices_seen(cluster)) == 100, "the worker reads and writes as admin", 60)
    worker.stop()
    assert "hush" not in worker.log_path.read_text()
    with pytest.raises(RetryableError):
        partition_counts(connection_as(kafka, "admin", "wrong"), timeout_s=3)


def connection_as(kafka: Kafka, user: str, password: str) -> KafkaConnection:
    return KafkaConnection(
        bootstrap=kafka.bootstrap, security_protocol="SASL_PLAINTEXT", sasl_username=user, sasl_password=password
    )


def test_with_a_registry_the_worker_writes_under_its_ids(cluster: Cluster, registry: RealRegistry) -> None:
    cluster.worker("fake", REGISTRY=registry.url)
    cluster.produce(steady(1, 1))
    wait_until(lambda: len(cluster.read(JOB_SLICES.name)) == 10, "slices come", 60)

    ids = {int.from_bytes((message.value or b"")[1:5], "big") for message in cluster.read(JOB_SLICES.name)}
    assert ids == {Registry(url=registry.url).register(JOB_SLICES).registered_id}
    decode = Decoder(JOB_SLICES, registry=Registry(url=registry.url))
    assert {type(decode(message.value)) for message in cluster.read(JOB_SLICES.name)} == {JobSlice}
