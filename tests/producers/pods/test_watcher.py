"""The pod watcher tells changes, everything again now and then, and the time each second to every partition."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
from confluent_kafka import Consumer, TopicPartition
from structlog.testing import capture_logs

from fabric_sentinel.broker import EmbeddedBroker
from producers.pods.book import KEPT_TICKS, PodBook
from producers.pods.run import RESEND_TICKS, PodsSettings, Watcher, run
from producers.pods.source import ListedPod, Listing, Reading
from producers.publish import PublishCounts
from producers.write import RecordWriter
from streams.contract.inputs import NodeFacts, NodePods
from streams.contract.plumbing import HealthStatus
from streams.contract.topics import BY_NAME, INPUTS, NODE_PODS, PIPELINE_HEALTH
from streams.contract.wire import Decoder

NOW = 17_960_000_000


def listed(uid: str, node: str = "a", **facts: object) -> ListedPod:
    return msgspec.convert({"pod_uid": uid, "namespace": "n", "name": uid, "node": node, **facts}, ListedPod)


class Source:
    def __init__(self) -> None:
        self.next = Reading()

    def read(self) -> Reading:
        reading, self.next = self.next, Reading(problem=self.next.problem)
        return reading


class Sent:
    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes | None, int | None, msgspec.Struct]] = []

    def publish(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        partition: int | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        assert headers
        self.messages.append((topic, key, partition, Decoder(BY_NAME[topic])(value)))

    def take_pods(self) -> dict[str, NodePods]:
        found = [m[3] for m in self.messages if isinstance(m[3], NodePods) and m[3].watcher_clock is None]
        self.messages = []
        return {record.node: record for record in found}


def watcher_of(source: Source, sent: Sent) -> Watcher:
    return Watcher(source, RecordWriter(sent), cluster="c", partitions=3)


def test_pods_of_the_first_list_are_older_than_the_watcher_and_later_ones_are_not() -> None:
    book = PodBook()
    book.apply(Listing(pods=(listed("old"), listed("dated", since_tick=NOW - 7))), NOW)
    book.apply(Listing(pods=(listed("old"), listed("dated", since_tick=NOW - 7), listed("new"))), NOW + 20)
    lives = {pod.pod_uid: (pod.valid_from_tick, pod.valid_to_tick) for pod in book.pods("a")}
    assert lives == {"old": (NOW - KEPT_TICKS, None), "dated": (NOW - 7, None), "new": (NOW + 20, None)}


def test_an_ended_pod_is_kept_for_an_hour_and_then_forgotten() -> None:
    book = PodBook()
    book.apply(Listing(pods=(listed("p"),)), NOW)
    assert book.apply(Listing(), NOW + 10) == {"a"}
    assert [pod.valid_to_tick for pod in book.pods("a")] == [NOW + 10]
    assert book.expire(NOW + 10 + KEPT_TICKS) == set()
    assert book.expire(NOW + 11 + KEPT_TICKS) == {"a"}
    assert book.pods("a") == []


def test_only_nodes_that_changed_are_told() -> None:
    book = PodBook()
    assert book.apply(Listing(pods=(listed("p"), listed("q", "b")), facts={"z": NodeFacts()}), NOW) == {"a", "b", "z"}
    assert book.apply(Listing(pods=(listed("p"), listed("q", "b")), facts={"z": NodeFacts()}), NOW + 1) == set()
    assert book.apply(Listing(pods=(listed("p", gpus=2), listed("q", "b"))), NOW + 2) == {"a"}
    assert book.apply(Listing(pods=(listed("p", "b"), listed("q", "b"))), NOW + 3) == {"a", "b"}, "it moved"


def test_changes_come_before_the_clock_that_covers_them() -> None:
    source, sent = Source(), Sent()
    watcher = watcher_of(source, sent)
    source.next = Reading(listing=Listing(pods=(listed("p"),)))
    watcher.second(NOW)
    topics = [(topic, partition) for topic, _, partition, _ in sent.messages]
    assert topics == [("node-pods", None), *((topic.name, p) for topic in INPUTS for p in range(3))]
    clocks = [record.watcher_clock for _, _, partition, record in sent.messages if partition is not None]
    assert {(clock.seq, clock.tick, clock.watcher_epoch) for clock in clocks} == {(1, NOW, watcher.epoch)}
    assert all(key == b"~clock" for _, key, partition, _ in sent.messages if partition is not None)


def test_everything_is_told_again_every_five_minutes_and_nothing_in_between() -> None:
    source, sent = Source(), Sent()
    watcher = watcher_of(source, sent)
    source.next = Reading(listing=Listing(pods=(listed("p"), listed("q", "b"))))
    told = []
    for tick in range(NOW, NOW + 2 * RESEND_TICKS + 1, 10):
        watcher.second(tick)
        if pods := sent.take_pods():
            told.append((tick - NOW, sorted(pods), [record.seq for record in pods.values()]))
    assert told == [(0, ["a", "b"], [1, 2]), (RESEND_TICKS, ["a", "b"], [3, 4]), (2 * RESEND_TICKS, ["a", "b"], [5, 6])]


def test_a_clock_that_went_back_begins_a_new_epoch_and_tells_everything() -> None:
    source, sent = Source(), Sent()
    watcher = watcher_of(source, sent)
    source.next = Reading(listing=Listing(pods=(listed("p"),)))
    watcher.second(NOW)
    before = watcher.epoch
    sent.take_pods()
    watcher.second(NOW - 1)
    assert watcher.epoch == before
    watcher.second(NOW - 50)
    assert watcher.epoch != before
    assert list(sent.take_pods()) == ["a"]


def test_an_unreadable_source_degrades_health_and_is_logged_once() -> None:
    source, sent = Source(), Sent()
    watcher = watcher_of(source, sent)
    source.next = Reading(problem="f: line 3: nonsense")
    with capture_logs() as lines:
        for second in range(3):
            watcher.second(NOW + 10 * second)
        unwell = watcher.health(0, PublishCounts())
        source.next = Reading()
        watcher.second(NOW + 30)
    assert (unwell.status, unwell.message) == (HealthStatus.DEGRADED, "f: line 3: nonsense")
    assert watcher.health(0, PublishCounts()).status is HealthStatus.OK
    assert [line["event"] for line in lines] == [
        "pods cannot be read, and there is no list yet",
        "pods are readable again",
    ]
    assert watcher.problems == 1


def test_a_live_watcher_follows_its_file(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text("pods: [{uid: u1, namespace: n, name: p, node: node-a, gpus: 8}]")
    with EmbeddedBroker({topic.name: 2 for topic in INPUTS} | {PIPELINE_HEALTH.name: 1}) as broker:
        stop = threading.Event()
        settings = PodsSettings(
            kafka={"bootstrap.servers": broker.bootstrap}, cluster="c", file=path, partitions=2, metrics_port=0
        )
        worker = threading.Thread(target=run, args=(settings, stop))
        worker.start()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "r", "enable.auto.commit": False})
        consumer.assign([TopicPartition(NODE_PODS.name, partition, 0) for partition in range(2)])
        lists: list[list[str]] = []
        clocks = 0
        deadline = time.monotonic() + 20
        while len(lists) < 2 and time.monotonic() < deadline:
            for message in consumer.consume(100, 0.2):
                record = Decoder(NODE_PODS)(message.value())
                assert isinstance(record, NodePods)
                if record.watcher_clock is not None:
                    clocks += 1
                    continue
                assert message.key() == b"node-a"
                lists.append([pod.pod_uid for pod in record.pods if pod.valid_to_tick is None])
                path.write_text("pods: [{uid: u2, namespace: n, name: p, node: node-a}]")
        stop.set()
        worker.join(15)
        consumer.close()
    assert not worker.is_alive()
    assert lists == [["u1"], ["u2"]]
    assert clocks >= 2
