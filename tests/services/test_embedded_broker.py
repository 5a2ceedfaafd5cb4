"""The embedded broker carries what the demo needs: producers, groups, commits, restarts, and a clean end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, Producer, TopicPartition

from fabric_sentinel.broker import BrokerError, EmbeddedBroker, ensure_topics
from tests.paths import heed_interrupts

# The mock cluster lets a rebalance last this long less one second.
SESSION_TIMEOUT_MS = 3000
TOPICS = {"in": 32, "other": 4, "out": 32, "single": 1}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(TOPICS) as running:
        yield running


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def produce(bootstrap: str, topic: str, numbers: range, keys: int = 300) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "partitioner": "murmur2_random",
        }
    )
    failures: list[object] = []
    for number in numbers:
        producer.produce(
            topic,
            key=b"k%d" % (number % keys),
            value=b"%d" % number,
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )
    assert producer.flush(20) == 0
    assert failures == []


def group_member(bootstrap: str, topic: str, group: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": 500,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    return consumer


def read(consumer: Consumer, count: int, timeout_s: float = 60.0) -> list[int]:
    """The next `count` values; fewer only if the deadline passes."""
    values: list[int] = []
    deadline = time.monotonic() + timeout_s
    while len(values) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(values), 0.2):
            assert message.error() is None
            values.append(int(message.value()))
    return values


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_topics_have_the_partitions_asked_for(broker: EmbeddedBroker) -> None:
    topics = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"}).list_topics(timeout=10).topics
    assert {name: len(topic.partitions) for name, topic in topics.items()} == TOPICS
    ensure_topics(broker.bootstrap, TOPICS)


def test_starting_with_twelve_topics_takes_under_three_seconds() -> None:
    before = time.monotonic()
    with EmbeddedBroker({f"t{i}": 32 for i in range(12)}):
        assert time.monotonic() - before < 3


def test_missing_topics_and_other_counts_are_named(broker: EmbeddedBroker) -> None:
    with pytest.raises(BrokerError, match="topic absent is missing; topic other has 4 partitions, not 5"):
        ensure_topics(broker.bootstrap, {"absent": 2, "in": 32, "other": 5}, timeout_s=0.5)
    broker.create({"absent": 2})
    ensure_topics(broker.bootstrap, {"absent": 2})
    with pytest.raises(BrokerError, match="topic in: exists with 32 partitions, not 8"):
        broker.create({"in": 8})


def test_a_group_of_confluent_consumers_goes_on_where_it_committed(broker: EmbeddedBroker) -> None:
    produce(broker.bootstrap, "single", range(1000))
    first = group_member(broker.bootstrap, "single", "g")
    assert read(first, 600) == list(range(600))
    noted = TopicPartition("single", 0, 600, "cut=137")
    first.commit(offsets=[noted], asynchronous=False)
    first.close()

    second = group_member(broker.bootstrap, "single", "g")
    assert read(second, 400) == list(range(600, 1000))
    committed = second.committed([TopicPartition("single", 0)], timeout=5)[0]
    assert (committed.offset, committed.metadata) == (600, "cut=137")
    second.close()


async def aio_read(bootstrap: str, count: int) -> list[int]:
    consumer = AIOKafkaConsumer(
        "in",
        bootstrap_servers=bootstrap,
        group_id="aio",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=500,
    )
    await consumer.start()
    values: list[int] = []
    deadline = time.monotonic() + 20
    while len(values) < count and time.monotonic() < deadline:
        batches = await consumer.getmany(timeout_ms=200, max_records=count - len(values))
        values += [int(record.value) for records in batches.values() for record in records]
    await consumer.commit()
    await consumer.stop()
    return values


async def test_a_group_of_aiokafka_consumers_goes_on_where_it_committed(broker: EmbeddedBroker) -> None:
    produce(broker.bootstrap, "in", range(5000))
    first = await aio_read(broker.bootstrap, 2000)
    second = await aio_read(broker.bootstrap, 3000)
    assert (len(first), len(second)) == (2000, 3000)
    assert sorted(first + second) == list(range(5000))


def test_keys_keep_their_order_and_their_partition(broker: EmbeddedBroker) -> None:
    produce(broker.bootstrap, "in", range(3000), keys=30)
    consumer = group_member(broker.bootstrap, "in", "order")
    partitions: dict[bytes, set[int]] = {}
    values: dict[bytes, list[int]] = {}
    deadline = time.monotonic() + 20
    while sum(map(len, values.values())) < 3000 and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.2):
            partitions.setdefault(message.key(), set()).add(message.partition())
            values.setdefault(message.key(), []).append(int(message.value()))
    consumer.close()
    assert values == {b"k%d" % key: list(range(key, 3000, 30)) for key in range(30)}
    assert all(len(found) == 1 for found in partitions.values())


def test_a_topic_is_read_from_its_beginning_to_its_end_without_a_group(broker: EmbeddedBroker) -> None:
    produce(broker.bootstrap, "other", range(500))
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    ends = {p: consumer.get_watermark_offsets(TopicPartition("other", p), timeout=5) for p in range(4)}
    assert sum(high - low for low, high in ends.values()) == 500
    consumer.assign([TopicPartition("other", p, low) for p, (low, _) in ends.items()])
    assert sorted(read(consumer, 500)) == list(range(500))
    consumer.close()


def test_partitions_of_a_member_that_vanished_go_to_the_one_that_is_left(broker: EmbeddedBroker) -> None:
    program = (
        "import sys; from confluent_kafka import Consumer\n"
        "c = Consumer({'bootstrap.servers': sys.argv[1], 'group.id': 'pair', 'session.timeout.ms': 3000,"
        " 'heartbeat.interval.ms': 500, 'log_level': 0})\n"
        "c.subscribe(['in'], on_assign=lambda c, ps: print(len(ps), flush=True))\n"
        "while True: c.poll(0.1)\n"
    )
    vanishing = subprocess.Popen([sys.executable, "-c", program, broker.bootstrap], stdout=subprocess.PIPE, text=True)
    try:
        assert vanishing.stdout is not None
        assert vanishing.stdout.readline() == "32\n"
        staying = group_member(broker.bootstrap, "in", "pair")

        def owns(count: int) -> bool:
            staying.poll(0.1)
            return len(staying.assignment()) == count

        wait_until(lambda: owns(16), "half of the partitions")
        vanishing.kill()
        wait_until(lambda: owns(32), "all of the partitions")
        staying.close()
    finally:
        vanishing.kill()
        vanishing.wait()
        vanishing.stdout.close()


def test_a_faust_worker_copies_every_message_and_goes_on_after_a_restart(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    app = Path(__file__).with_name("embedded_faust_app.py")
    copies = group_member(broker.bootstrap, "out", "reader")
    log_path = tmp_path / "faust.log"

    def run_until(numbers: range) -> None:
        produce(broker.bootstrap, "in", numbers)
        with log_path.open("a") as log:
            worker = subprocess.Popen(
                [sys.executable, str(app), broker.bootstrap, "worker", "--without-web"],
                stdout=log,
                stderr=log,
                cwd=tmp_path,
            )
        try:
            assert set(read(copies, len(numbers), timeout_s=40)) == set(numbers), log_path.read_text()[-3000:]
        finally:
            worker.terminate()
            worker.wait(20)

    run_until(range(500))
    run_until(range(500, 900))
    copies.close()


def test_stop_leaves_nothing_and_another_broker_can_run_beside(broker: EmbeddedBroker) -> None:
    other = EmbeddedBroker({"in": 1})
    assert other.start() != broker.bootstrap
    pid = other.pid
    assert pid is not None
    assert alive(pid)
    other.stop()
    other.stop()
    assert not alive(pid)
    assert other.bootstrap == ""
    with pytest.raises(BrokerError, match="not running"):
        other.create({"x": 1})


PARENT = (
    "import sys, time; from fabric_sentinel.broker import EmbeddedBroker\n"
    "with EmbeddedBroker({'in': 1}) as b:\n"
    "    print(b.pid, flush=True)\n"
    "    time.sleep(60)\n"
)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_parent_is_killed_or_interrupted(how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    if how is signal.SIGINT:
        os.killpg(parent.pid, how)  # as a terminal's Ctrl-C does: parent and child alike
    else:
        parent.kill()
    parent.wait(30)
    parent.stdout.close()
    wait_until(lambda: not alive(pid), "the broker's end", timeout_s=30)


def test_a_broker_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "confluent_kafka.py"
    broken.write_text("raise ImportError('librdkafka is broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(BrokerError, match="librdkafka is broken"):
        EmbeddedBroker().start()


def test_a_partition_keeps_its_newest_five_megabytes_of_large_messages(broker: EmbeddedBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    for _ in range(12):
        producer.produce("single", value=os.urandom(900_000))
        assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    assert consumer.get_watermark_offsets(TopicPartition("single", 0), timeout=5) == (7, 12)
    consumer.close()
