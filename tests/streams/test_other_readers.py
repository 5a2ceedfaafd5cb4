"""Somebody else's reader reads our topics: Confluent's AvroDeserializer, by packaged ids and by a real registry's."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from streams.contract.kafka import KafkaConnection
from streams.contract.registry import Registry, register_all, serve
from streams.contract.schemas import PACKAGED_BIT, latest
from streams.contract.topics import ALL, BY_NAME, EPISODES, NIC_COUNTERS
from streams.contract.wire import Decoder, Encoder
from streams.kafka_log import read_to_end
from streams.topics_admin import apply
from tests.contract.examples import EXAMPLES, NIC
from tests.services.kafka import Kafka
from tests.services.registry import Registry as RealRegistry

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]


def written(kafka: Kafka, ids: dict[str, int]) -> None:
    """Every example on its topic: under the packaged id, and under the registry's where there is one."""
    producer = Producer(kafka.client())
    for (topic, _), record in EXAMPLES.items():
        for encode in (Encoder(BY_NAME[topic]), Encoder(BY_NAME[topic], registered_id=ids.get(topic))):
            producer.produce(topic, encode(record), key=b"k")
    assert producer.flush(30) == 0


@pytest.fixture
def filled(new_kafka: Callable[..., Kafka]) -> Kafka:
    kafka = new_kafka()
    kafka.start()
    apply(KafkaConnection(bootstrap=kafka.bootstrap), partitions=2, replication=1)
    return kafka


def everything(kafka: Kafka, topic: str) -> list[Message]:
    consumer = Consumer(kafka.client() | {"group.id": f"other-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    expected = 2 * len([name for name, _ in EXAMPLES if name == topic])
    found: list[Message] = []
    while len(found) < expected:
        found += [message for message in consumer.consume(expected, 1.0) if message.error() is None]
    consumer.close()
    return found


def test_confluents_deserializer_reads_every_topic_by_packaged_ids(filled: Kafka) -> None:
    written(filled, {})
    with serve() as url:
        for topic in ALL:
            deserialize = AvroDeserializer(SchemaRegistryClient({"url": url}))
            records = [
                deserialize(message.value(), SerializationContext(topic.name, MessageField.VALUE))
                for message in everything(filled, topic.name)
            ]
            assert {frozenset(record) for record in records} == {frozenset(topic.record.__struct_fields__)}


def test_a_real_registry_takes_our_schemas_and_both_kinds_of_id_read_on_one_topic(
    filled: Kafka, registry: RealRegistry
) -> None:
    ids = register_all(Registry(url=registry.url), ALL)
    assert ids.keys() == BY_NAME.keys()
    assert all(0 < registered < PACKAGED_BIT for registered in ids.values())
    assert register_all(Registry(url=registry.url), ALL) == ids
    written(filled, ids)

    ours = Decoder(NIC_COUNTERS, registry=Registry(url=registry.url))
    values = [m.value or b"" for m in read_to_end(KafkaConnection(bootstrap=filled.bootstrap), ["nic-counters"])]
    kinds = {bool(int.from_bytes(value[1:5], "big") & PACKAGED_BIT) for value in values}
    assert kinds == {True, False}
    assert [ours(value) for value in values].count(NIC) == 2

    theirs = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    by_registry = [m for m in everything(filled, EPISODES.name) if not m.value()[1] & 0x40]
    read = theirs(by_registry[0].value(), SerializationContext(EPISODES.name, MessageField.VALUE))
    assert read["episode_id"] == msgspec.to_builtins(EXAMPLES["episodes", "confirmed"])["episode_id"]


def test_a_real_registry_that_holds_an_incompatible_schema_is_told_about_and_passed_by(registry: RealRegistry) -> None:
    other = json.loads(latest("pipeline-health").text)
    other["fields"] = [field for field in other["fields"] if field["name"] != "component"]
    client = SchemaRegistryClient({"url": registry.url})
    subject = "pipeline-health-value"
    client.set_compatibility(subject, "BACKWARD_TRANSITIVE")
    if subject in client.get_subjects():
        client.delete_subject(subject)
    client.register_schema(subject, Schema(json.dumps(other), "AVRO"))

    registration = Registry(url=registry.url).register(BY_NAME["pipeline-health"])
    client.delete_subject(subject)

    assert registration.registered_id is None
    assert "incompatible with its newest for pipeline-health-value" in registration.why
