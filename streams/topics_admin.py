"""Creates the topics as the contract states them, says what differs, and shows what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from streams.contract.errors import InvalidRecordError, RetryableError
from streams.contract.kafka import KafkaConnection
from streams.contract.topics import ALL, BY_NAME, DEAD_LETTERS, STATE, Topic
from streams.contract.wire import Decoder, SchemaIds
from streams.kafka_log import read_to_end
from streams.readable import readable

ANSWER_TIMEOUT_S = 15.0
# A dead letter holds a whole message of up to the brokers' 1 MiB, and its own fields around it.
ROOMY_MESSAGE_BYTES = 2 * 1024 * 1024
# A compacted topic is read from its beginning at each start: small segments let compaction reach further.
COMPACTED_SEGMENT_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A topic that was not there and now is."""

    topic: str
    partitions: int

    def __str__(self) -> str:
        return f"created {self.topic} with {self.partitions} partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something about an existing topic that is not as stated; it is never altered here."""

    topic: str
    what: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.what} is {self.found}, not {self.wanted}"


def configuration(topic: Topic) -> dict[str, str]:
    """The settings that a topic's readers rely on."""
    settings = {"cleanup.policy": topic.cleanup, "retention.ms": str(topic.retention_ms)}
    if topic.cleanup != "delete":
        settings["segment.ms"] = str(COMPACTED_SEGMENT_MS)
    if topic in (DEAD_LETTERS, STATE):
        settings["max.message.bytes"] = str(ROOMY_MESSAGE_BYTES)
    return settings


def apply(connection: KafkaConnection, *, partitions: int, replication: int) -> list[Created | Difference]:
    """Create what is missing, report what differs; an empty list means all is as stated.

    Raises RetryableError when the brokers do not answer, ValueError when they refuse.
    """
    admin = _admin(connection)
    there = _partition_counts(admin)
    created = _create(admin, [t for t in ALL if t.name not in there], partitions, replication)
    existing = [topic for topic in ALL if topic.name in there]
    wrong_counts = [
        Difference(
            topic=topic.name,
            what="the number of partitions",
            wanted=str(topic.partitions(partitions)),
            found=str(there[topic.name]),
        )
        for topic in existing
        if there[topic.name] != topic.partitions(partitions)
    ]
    return [*created, *wrong_counts, *_configuration_differences(admin, existing)]


def partition_counts(connection: KafkaConnection, *, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, int]:
    """Partitions of every topic on the brokers; raises RetryableError when they do not answer."""
    return _partition_counts(_admin(connection), timeout_s)


def cat(
    connection: KafkaConnection,
    topic: str,
    *,
    registry: SchemaIds | None = None,
    limit: int | None = None,
) -> Iterator[str]:
    """One JSON line per message up to the topic's present end, packed numbers spelled out.

    A message that is no record gives a line with `error` instead of `record`. Raises KeyError for an unknown topic.
    """
    known = BY_NAME[topic]
    decode = Decoder(known, registry=registry)
    for number, message in enumerate(read_to_end(connection, [topic])):
        if limit is not None and number >= limit:
            return
        place: dict[str, object] = {
            "partition": message.partition,
            "offset": message.offset,
            "broker_time_ms": message.broker_time_ms,
            "key": None if message.key is None else message.key.decode("utf-8", "backslashreplace"),
        }
        try:
            place["record"] = readable(decode(message.value))
        except InvalidRecordError as error:
            place["error"] = str(error)
        yield json.dumps(place, ensure_ascii=False)


def _admin(connection: KafkaConnection) -> AdminClient:
    return AdminClient({**connection.confluent(), "log_level": 0, "socket.timeout.ms": int(ANSWER_TIMEOUT_S * 1000)})


def _partition_counts(admin: AdminClient, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, int]:
    try:
        listed = admin.list_topics(timeout=timeout_s).topics
    except KafkaException as error:
        raise RetryableError(f"the brokers do not answer: {error.args[0].str()}") from error
    return {name: len(topic.partitions) for name, topic in listed.items()}


def _create(admin: AdminClient, missing: list[Topic], partitions: int, replication: int) -> list[Created]:
    if not missing:
        return []
    wanted = [
        NewTopic(
            topic.name,
            num_partitions=topic.partitions(partitions),
            replication_factor=replication,
            config=configuration(topic),
        )
        for topic in missing
    ]
    created = []
    for name, future in admin.create_topics(wanted, operation_timeout=ANSWER_TIMEOUT_S).items():
        try:
            future.result(ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            raise RetryableError(f"creating topic {name}: the brokers do not answer") from error
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # Another `apply` was quicker
                raise ValueError(f"creating topic {name}: {error.args[0].str()}") from error
            continue
        created.append(Created(topic=name, partitions=BY_NAME[name].partitions(partitions)))
    return created


def _configuration_differences(admin: AdminClient, topics: list[Topic]) -> list[Difference]:
    if not topics:
        return []
    resources = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in topics]
    differences = []
    for resource, future in admin.describe_configs(resources).items():
        try:
            found = future.result(ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            raise RetryableError(f"reading the settings of {resource.name}: the brokers do not answer") from error
        except KafkaException as error:
            raise ValueError(f"reading the settings of {resource.name}: {error.args[0].str()}") from error
        for name, wanted in configuration(BY_NAME[resource.name]).items():
            value = found[name].value if name in found else "unknown"
            if _comparable(value) != _comparable(wanted):
                differences.append(Difference(topic=resource.name, what=name, wanted=wanted, found=value))
    return differences


def _comparable(value: str) -> frozenset[str]:
    """Lists of policies come back in any order."""
    return frozenset(part.strip() for part in value.split(","))
