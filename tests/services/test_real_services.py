"""The harness gives real services: Kafka with its data kept through kills, a registry, Prometheus."""

import http.server
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.services.kafka import Kafka
from tests.services.process import wait_until
from tests.services.prometheus import Prometheus, check_metrics
from tests.services.registry import Registry

pytestmark = [pytest.mark.services, pytest.mark.timeout(180)]


def produce(kafka: Kafka, topic: str, numbers: range) -> None:
    producer = Producer(kafka.client() | {"enable.idempotence": "true", "compression.type": "zstd", "linger.ms": 5})
    failures: list[object] = []
    for number in numbers:
        producer.produce(
            topic,
            value=b"%d" % number,
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert failures == []


def read(kafka: Kafka, topic: str, group: str, count: int, **settings: str) -> list[int]:
    """`count` values read as a group that commits them; fewer only after the deadline."""
    consumer = Consumer(
        kafka.client() | {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": "false"} | settings
    )
    consumer.subscribe([topic])
    values: list[int] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(values), 0.2):
            assert message.error() is None
            values.append(int(message.value()))
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafka_delivers_to_a_group_that_goes_on_where_it_committed(kafka: Kafka, protocol: str) -> None:
    topic = f"plain-{protocol}"
    kafka.create_topics({topic: 8})
    produce(kafka, topic, range(2000))
    first = read(kafka, topic, topic, 1200, **{"group.protocol": protocol})
    second = read(kafka, topic, topic, 800, **{"group.protocol": protocol})
    assert (len(first), len(second)) == (1200, 800)
    assert sorted(first + second) == list(range(2000))


async def test_aiokafka_reads_what_confluent_kafka_wrote(kafka: Kafka) -> None:
    kafka.create_topics({"aio": 4})
    produce(kafka, "aio", range(500))
    consumer = AIOKafkaConsumer("aio", bootstrap_servers=kafka.bootstrap, group_id="aio", auto_offset_reset="earliest")
    await consumer.start()
    values: list[int] = []
    deadline = time.monotonic() + 30
    while len(values) < 500 and time.monotonic() < deadline:
        batches = await consumer.getmany(timeout_ms=200)
        values += [int(record.value) for records in batches.values() for record in records]
    await consumer.stop()
    assert sorted(values) == list(range(500))


def test_kafka_keeps_every_acknowledged_message_through_kill_9_stop_and_freeze(
    new_kafka: Callable[..., Kafka],
) -> None:
    kafka = new_kafka()
    kafka.start()
    kafka.create_topics({"kept": 2})
    produce(kafka, "kept", range(300))
    kafka.kill9()
    kafka.start()
    produce(kafka, "kept", range(300, 600))
    kafka.stop()
    kafka.start()
    assert kafka.process.pid is not None

    kafka.pause()
    with pytest.raises(KafkaException):
        AdminClient(kafka.client() | {"log_level": 0}).list_topics(timeout=1)
    kafka.resume()
    produce(kafka, "kept", range(600, 900))
    assert sorted(read(kafka, "kept", "g", 900)) == list(range(900))


def test_the_guest_listener_is_advertised_as_the_guest_sees_the_host(kafka: Kafka) -> None:
    host, port = kafka.guest_bootstrap.split(":")
    metadata = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}).list_topics(timeout=10)
    broker = metadata.brokers[1]
    assert (host, broker.host, broker.port) == ("10.0.2.2", "10.0.2.2", int(port))


def test_with_users_a_client_may_write_only_what_an_acl_allows(new_kafka: Callable[..., Kafka]) -> None:
    kafka = new_kafka(users={"admin": "a-secret", "agent": "another"})
    kafka.start()
    kafka.create_topics({"mine": 1, "theirs": 1})
    acl = AclBinding(
        ResourceType.TOPIC,
        "mine",
        ResourcePatternType.LITERAL,
        "User:agent",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    admin = AdminClient(kafka.client())
    for future in admin.create_acls([acl]).values():
        future.result(20)

    def outcome(topic: str) -> int:
        codes: list[int] = []
        producer = Producer(kafka.client("agent"))
        producer.produce(topic, b"x", on_delivery=lambda e, _m: codes.append(e.code() if e else 0))
        producer.flush(20)
        return codes[0]

    wait_until(lambda: outcome("mine") == 0, "the ACL applies", 20)
    assert outcome("theirs") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException):
        AdminClient(kafka.client("agent") | {"sasl.password": "wrong", "log_level": 0}).list_topics(timeout=2)


V1 = """{"type": "record", "name": "Row", "fields": [{"name": "port", "type": "long"}]}"""
V2 = V1.replace("]}", """, {"name": "note", "type": "string", "default": ""}]}""")
BREAKING = V1.replace("]}", """, {"name": "must", "type": "string"}]}""")


def test_the_registry_takes_a_compatible_schema_and_refuses_a_breaking_one(registry: Registry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    subject = f"row-{uuid.uuid4()}-value"
    first = client.register_schema(subject, Schema(V1, "AVRO"))
    client.set_compatibility(subject, "BACKWARD")
    second = client.register_schema(subject, Schema(V2, "AVRO"))
    assert first != second
    assert client.get_latest_version(subject).schema_id == second
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(subject, Schema(BREAKING, "AVRO"))
    assert refused.value.http_status_code == 409


def test_confluents_own_serialiser_and_deserialiser_agree_through_the_registry(registry: Registry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    context = SerializationContext(f"rows-{uuid.uuid4()}", MessageField.VALUE)
    framed = AvroSerializer(client, V1)({"port": 7}, context)
    assert framed is not None
    assert framed[0] == 0
    assert AvroDeserializer(client)(framed, context) == {"port": 7}


EXPOSITION = "# HELP probe_hits_total Hits.\n# TYPE probe_hits_total counter\nprobe_hits_total 41\n"


@pytest.fixture
def exporter() -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(EXPOSITION.encode())

        def log_message(self, *_args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_prometheus_scrapes_and_answers(new_prometheus: Callable[..., Prometheus], exporter: str) -> None:
    prometheus = new_prometheus({"probe": exporter})
    rows = prometheus.wait_for("probe_hits_total")
    assert [(labels["job"], value) for labels, value in rows] == [("probe", 41.0)]
    assert prometheus.query("up") == [({"__name__": "up", "instance": exporter, "job": "probe"}, 1.0)]


def test_promtool_is_silent_on_good_metrics_and_names_what_is_wrong() -> None:
    assert check_metrics(EXPOSITION) == ""
    assert "counter metrics should have" in check_metrics("# HELP hits Hits.\n# TYPE hits counter\nhits 1\n")
