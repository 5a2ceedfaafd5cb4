"""Our topics on a real Kafka and a real registry: created as stated, and readable by somebody else's reader."""

import json
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from streams import topics_admin
from streams.contract.kafka import KafkaConnection
from streams.contract.registry import Registry as OurRegistry
from streams.contract.registry import register_all, serve
from streams.contract.schemas import PACKAGED_BIT, latest
from streams.contract.topics import ALL, BY_NAME
from streams.contract.wire import PREFIX_BYTES, Decoder, Encoder
from tests.contract.examples import EXAMPLES
from tests.services.kafka import Kafka
from tests.services.registry import Registry

pytestmark = [pytest.mark.services, pytest.mark.timeout(180)]

PARTITIONS = 4


def connection(kafka: Kafka) -> KafkaConnection:
    return KafkaConnection(bootstrap=kafka.bootstrap)


def read_all(kafka: Kafka, topic: str, count: int) -> list[Message]:
    consumer = Consumer(kafka.client() | {"group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    messages: list[Message] = []
    deadline = time.monotonic() + 30
    while len(messages) < count and time.monotonic() < deadline:
        messages += [message for message in consumer.consume(count - len(messages), 0.2) if not message.error()]
    consumer.close()
    return messages


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    broker = Kafka(tmp_path_factory.mktemp("kafka-topics"))
    broker.start()
    topics_admin.apply(connection(broker), partitions=PARTITIONS, replication=1)
    yield broker
    broker.stop()


def test_topics_are_created_once_and_then_are_as_stated(applied: Kafka) -> None:
    assert topics_admin.apply(connection(applied), partitions=PARTITIONS, replication=1) == []
    counts = topics_admin.partition_counts(connection(applied))
    assert {name: counts[name] for name in BY_NAME} == {topic.name: topic.partitions(PARTITIONS) for topic in ALL}


def test_what_differs_on_the_brokers_is_said_and_left_alone(applied: Kafka) -> None:
    def set_retention(value: str) -> None:
        entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, "episodes", incremental_configs=[entry])
        admin = AdminClient(applied.client())
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(20)

    set_retention("1000")
    try:
        found = topics_admin.apply(connection(applied), partitions=PARTITIONS * 2, replication=1)
        lines = {str(line) for line in found}
    finally:
        set_retention(str(BY_NAME["episodes"].retention_ms))
    assert f"episodes: retention.ms is 1000, not {BY_NAME['episodes'].retention_ms}" in lines
    assert "nic-counters: the number of partitions is 4, not 8" in lines
    assert topics_admin.partition_counts(connection(applied))["nic-counters"] == PARTITIONS


@pytest.fixture(scope="module")
def ids(registry: Registry) -> dict[str, int]:
    return register_all(OurRegistry(url=registry.url), ALL)


def test_the_real_registry_takes_every_schema_and_refuses_one_that_would_break_readers(
    registry: Registry, ids: dict[str, int]
) -> None:
    assert set(ids) == set(BY_NAME)
    assert [number for number in ids.values() if number & PACKAGED_BIT] == []
    client = SchemaRegistryClient({"url": registry.url})
    client.set_compatibility("episodes-value", "BACKWARD")
    breaking = json.loads(latest("episodes").text)
    breaking["fields"].append({"name": "without_a_default", "type": "string"})
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("episodes-value", Schema(json.dumps(breaking), "AVRO"))
    assert refused.value.http_status_code == 409


@pytest.mark.parametrize("topic", ALL, ids=lambda topic: topic.name)
def test_confluents_reader_and_ours_read_registered_and_packaged_ids_on_one_topic(
    applied: Kafka, registry: Registry, ids: dict[str, int], topic: topics_admin.Topic
) -> None:
    records = [record for (name, _case), record in EXAMPLES.items() if name == topic.name]
    encoders = [Encoder(topic, registered_id=ids[topic.name]), Encoder(topic)]
    producer = Producer(applied.client() | {"enable.idempotence": "true", "compression.type": "zstd"})
    for encoder in encoders:
        for record in records:
            producer.produce(topic.name, key=b"k", value=encoder(record), headers=dict(encoder.headers))
    assert producer.flush(20) == 0
    messages = read_all(applied, topic.name, 2 * len(records))
    values = [message.value() for message in messages]

    ours = Decoder(topic, registry=OurRegistry(url=registry.url))
    assert [ours(value) for value in values] == records * 2
    context = SerializationContext(topic.name, MessageField.VALUE)
    with serve() as packaged_url:
        theirs = {
            False: AvroDeserializer(SchemaRegistryClient({"url": registry.url})),
            True: AvroDeserializer(SchemaRegistryClient({"url": packaged_url})),
        }
        packaged = [bool(int.from_bytes(value[1:PREFIX_BYTES], "big") & PACKAGED_BIT) for value in values]
        read = [theirs[kind](value, context) for kind, value in zip(packaged, values, strict=True)]
    assert packaged == [False] * len(records) + [True] * len(records)
    assert read[: len(records)] == read[len(records) :]
    assert [set(fields) for fields in read[: len(records)]] == [set(record.__struct_fields__) for record in records]


def test_our_clients_reach_a_broker_that_asks_for_scram(new_kafka: Callable[..., Kafka]) -> None:
    kafka = new_kafka(users={"admin": "a-secret"})
    kafka.start()
    secured = KafkaConnection(
        bootstrap=kafka.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_username="admin",
        sasl_password="a-secret",
    )
    created = topics_admin.apply(secured, partitions=2, replication=1)
    assert {str(line) for line in created} >= {"created nic-counters with 2 partitions"}
