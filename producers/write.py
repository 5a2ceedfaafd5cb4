"""Records to topics: encoded under packaged or registered schema ids, handed to whoever delivers messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec
import structlog

from streams.contract.errors import InvalidRecordError
from streams.contract.topics import Topic
from streams.contract.wire import Encoder


class Delivers(Protocol):
    """Takes a message without waiting."""

    def publish(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        partition: int | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Queue one message."""
        ...


class RecordWriter:
    """Encodes records of any topic; one that does not fit its schema is counted and named, and the flow goes on."""

    def __init__(self, delivers: Delivers, *, registered_ids: Mapping[str, int] | None = None) -> None:
        self._delivers = delivers
        self._registered_ids = dict(registered_ids or {})
        self._encoders: dict[str, Encoder] = {}
        self._log = structlog.get_logger("write")
        self.unencodable = 0

    def write(self, topic: Topic, key: str, record: msgspec.Struct, partition: int | None = None) -> None:
        """Encode and queue one record; an empty key travels as none."""
        encoder = self._encoders.get(topic.name)
        if encoder is None:
            encoder = Encoder(topic, registered_id=self._registered_ids.get(topic.name))
            self._encoders[topic.name] = encoder
        try:
            value = encoder(record)
        except InvalidRecordError as error:
            self.unencodable += 1
            if self.unencodable == 1:
                self._log.error("a record does not fit its schema, dropped", topic=topic.name, reason=str(error))
            return
        self._delivers.publish(topic.name, key.encode() or None, value, partition, encoder.headers)
