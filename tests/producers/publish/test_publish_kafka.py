"""Against a real Kafka: killed, frozen and restarted brokers lose nothing within the bound and reorder nothing."""

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from producers.pods.clock_records import CLOCK_KEY, clock_records
from producers.publish import Publisher
from producers.write import RecordWriter
from streams.contract.topics import INPUTS
from tests.producers.publish.test_publish import per_key, publish, read_all, wait_until
from tests.services.kafka import Kafka

pytestmark = [pytest.mark.services, pytest.mark.timeout(180)]

QUICKLY = {"away_after_s": 1.0, "probe_every_s": 0.2}


def test_a_broker_that_is_killed_and_restarted_gets_everything_in_order(new_kafka: Callable[..., Kafka]) -> None:
    kafka = new_kafka()
    kafka.start()
    kafka.create_topics({"t": 4})
    publisher = Publisher(kafka.client(), **QUICKLY)
    publish(publisher, range(1000))
    wait_until(lambda: publisher.counts.delivered >= 1000, "delivery")
    with capture_logs() as lines:
        publish(publisher, range(1000, 1500))
        kafka.kill9()
        publish(publisher, range(1500, 3000))
        wait_until(lambda: publisher.counts.away, "away")
        publish(publisher, range(3000, 4000))
        kafka.start()
        wait_until(lambda: publisher.counts.delivered == 4000, "delivery of the rest", timeout_s=60)
    publish(publisher, range(4000, 4300))
    assert publisher.close(20).messages == 0
    found = read_all(kafka.bootstrap)
    assert per_key(found) == {b"k%d" % key: list(range(key, 4300, 3)) for key in range(3)}
    counts = publisher.counts
    assert (counts.accepted, counts.delivered, counts.dropped, counts.refused) == (4300, 4300, 0, 0)
    said = [line["event"] for line in lines if line["log_level"] != "debug"]
    assert said == ["broker away, keeping the newest messages", "broker back"]


def test_a_broker_that_freezes_gets_everything_in_order(new_kafka: Callable[..., Kafka]) -> None:
    kafka = new_kafka()
    kafka.start()
    kafka.create_topics({"t": 4})
    publisher = Publisher(kafka.client(), **QUICKLY)
    publish(publisher, range(300))
    wait_until(lambda: publisher.counts.delivered >= 300, "delivery")
    kafka.pause()
    publish(publisher, range(300, 600))
    wait_until(lambda: publisher.counts.away, "away")
    kafka.resume()
    wait_until(lambda: publisher.counts.delivered == 600, "delivery of the rest", timeout_s=60)
    publisher.close(20)
    assert per_key(read_all(kafka.bootstrap)) == {b"k%d" % key: list(range(key, 600, 3)) for key in range(3)}


def test_clock_records_are_taken_by_compacted_topics_too(kafka: Kafka) -> None:
    kafka.create_topics({topic.name: 2 for topic in INPUTS if topic.cleanup == "delete"})
    kafka.create_topics(
        {topic.name: 2 for topic in INPUTS if topic.cleanup != "delete"}, {"cleanup.policy": "compact,delete"}
    )
    publisher = Publisher(kafka.client())
    writer = RecordWriter(publisher)
    for topic, record in clock_records(cluster="c", watcher_epoch="e", seq=1, tick=7):
        for partition in range(2):
            writer.write(topic, CLOCK_KEY, record, partition)
    assert publisher.close(20).messages == 0
    assert (publisher.counts.delivered, publisher.counts.refused) == (6, 0)


def test_a_topic_that_does_not_exist_is_refused_and_the_others_go_on(kafka: Kafka) -> None:
    kafka.create_topics({"there": 1})
    publisher = Publisher(kafka.client() | {"topic.metadata.propagation.max.ms": 500}, away_after_s=60)
    publisher.publish("not-there", b"k", b"1")
    publisher.publish("there", b"k", b"2")
    wait_until(lambda: publisher.counts.delivered == 1, "delivery")
    wait_until(lambda: publisher.counts.refused == 1, "refusal")
    assert publisher.close(5).messages == 0
