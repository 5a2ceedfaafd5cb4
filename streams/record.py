"""Makes a recording of topics: of a range of the brokers' time, or live until told to stop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from streams.contract.errors import InvalidRecordError
from streams.contract.kafka import KafkaConnection
from streams.contract.topics import INPUTS, NODE_PODS, Topic
from streams.contract.wire import Decoder, SchemaIds
from streams.kafka_log import follow, newest_before, read_to_end
from streams.recording import Recorder, RunInfo


def record(
    connection: KafkaConnection,
    path: Path,
    *,
    cluster: str,
    version: str,
    partitions: int,
    settings: Mapping[str, object] | None = None,
    topics: Iterable[Topic] = INPUTS,
    from_ms: int | None = None,
    until_ms: int | None = None,
    stop: Callable[[], bool] | None = None,
    registry: SchemaIds | None = None,
    on_message: Callable[[int], None] | None = None,
) -> RunInfo:
    """Write a recording into the folder `path`, and return what it holds.

    From a broker time (None: the topics' beginning) to a broker time (None: their end as it is now); with `stop`,
    live until it returns true and nothing more is waiting. Pods that were known at the beginning come with it. A
    message that is no record is kept as its bytes. Raises RecordingError where `path` already holds one,
    RetryableError where the brokers do not answer.
    """
    chosen = list(topics)
    names = [topic.name for topic in chosen]
    decoders = {topic.name: Decoder(topic, registry=registry) for topic in chosen}
    run = RunInfo(
        version=version, cluster=cluster, partitions=partitions, settings=dict(settings or {}), began=_now_text()
    )
    messages = (
        read_to_end(connection, names, from_ms=from_ms, until_ms=until_ms)
        if stop is None
        else follow(connection, names, from_ms=from_ms, stop=stop)
    )
    known = newest_before(connection, NODE_PODS.name, from_ms) if from_ms and NODE_PODS in chosen else []
    with Recorder(path, run) as recorder:
        for number, message in enumerate(itertools.chain(known, messages), 1):
            try:
                recorder.write(message, decoders[message.topic](message.value))
            except InvalidRecordError:
                recorder.write(message, None)
            if on_message is not None:
                on_message(number)
        recorder.end(_now_text())
    return recorder.summary()


def _now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
