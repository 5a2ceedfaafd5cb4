"""Records to bytes and back, in the Confluent wire format: 0x00, schema id (4 bytes, big-endian), Avro body."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import fastavro
import msgspec

from streams.contract.errors import InvalidRecordError
from streams.contract.schemas import PACKAGED_BIT, by_packaged_id, latest
from streams.contract.topics import Topic
from streams.contract.validate import check

MAGIC = 0
PREFIX_BYTES = 5
FINGERPRINT_HEADER = "schema-fingerprint"  # 16 hex digits: the 64-bit fingerprint behind a 30-bit packaged id

AnyRecord = TypeVar("AnyRecord", bound=msgspec.Struct)
ParsedSchema = dict[str, object]
_BYTES_STAY = (bytes,)


class SchemaIds(Protocol):
    """Ids that are not packaged: a registry's."""

    def schema_of(self, schema_id: int) -> ParsedSchema:
        """The schema an id stands for; raises InvalidRecordError if there is none, RetryableError if it is away."""
        ...


class NoRegistry:
    """Without a registry only packaged ids can be read."""

    def schema_of(self, schema_id: int) -> ParsedSchema:
        """Always raises InvalidRecordError."""
        raise InvalidRecordError(f"schema id {schema_id} is not a packaged one, and no Schema Registry is configured")


class Encoder:
    """Writes one topic's records under one schema id."""

    def __init__(self, topic: Topic, *, registered_id: int | None = None) -> None:
        schema = latest(topic.name)
        self._record = topic.record
        self._parsed = schema.parsed
        self._prefix = bytes((MAGIC,)) + (registered_id or schema.packaged_id).to_bytes(4, "big")
        self.headers: Mapping[str, bytes] = {FINGERPRINT_HEADER: schema.fingerprint.hex().encode()}

    def __call__(self, record: msgspec.Struct) -> bytes:
        """The message value; raises InvalidRecordError where a field does not fit (a float in a long, 2^63)."""
        try:
            fields = msgspec.to_builtins(record, builtin_types=_BYTES_STAY)
            msgspec.convert(fields, self._record)  # Avro writers truncate 1.5 to 1 without a word
            out = io.BytesIO()
            out.write(self._prefix)
            fastavro.schemaless_writer(out, self._parsed, fields)
        except (msgspec.ValidationError, ValueError, TypeError, OverflowError) as error:
            raise InvalidRecordError(f"cannot be written as {self._record.__name__}: {error}") from error
        return out.getvalue()


class Decoder:
    """Reads one topic's messages, whichever schema version or id they travel under."""

    def __init__(self, topic: Topic, *, registry: SchemaIds | None = None) -> None:
        self._topic = topic
        self._reader = latest(topic.name).parsed
        self._registry = registry or NoRegistry()
        self._writers: dict[int, ParsedSchema] = {}

    def __call__(self, value: bytes | None) -> msgspec.Struct:
        """The record; raises InvalidRecordError for anything that is not exactly one."""
        if value is None:
            raise InvalidRecordError("the message has no value")
        if len(value) < PREFIX_BYTES or value[0] != MAGIC:
            raise InvalidRecordError("no Confluent prefix: byte 0 must be 0x00, then a 4-byte schema id")
        writer = self._writer_of(int.from_bytes(value[1:PREFIX_BYTES], "big"))
        body = io.BytesIO(value)
        body.seek(PREFIX_BYTES)
        fields = self._read(body, writer)
        if body.tell() != len(value):
            raise InvalidRecordError(f"{len(value) - body.tell()} bytes are left over after the record")
        try:
            record = msgspec.convert(fields, self._topic.record, builtin_types=_BYTES_STAY)
        except msgspec.ValidationError as error:
            raise InvalidRecordError(str(error)) from error
        check(record)
        return record

    def _writer_of(self, schema_id: int) -> ParsedSchema:
        if (known := self._writers.get(schema_id)) is not None:
            return known
        if schema_id & PACKAGED_BIT:
            schema = by_packaged_id().get(schema_id)
            if schema is None or schema.topic != self._topic.name:
                raise InvalidRecordError(f"schema id {schema_id} is no packaged schema of {self._topic.name}")
            parsed = schema.parsed
        else:
            parsed = self._registry.schema_of(schema_id)
        self._writers[schema_id] = parsed
        return parsed

    def _read(self, body: io.BytesIO, writer: ParsedSchema) -> object:
        reader = None if writer is self._reader else self._reader
        try:
            return fastavro.schemaless_reader(body, writer, reader)
        except RecursionError as error:
            raise InvalidRecordError("nested too deeply") from error
        except Exception as error:  # fastavro raises a dozen types on bytes that are no record
            raise InvalidRecordError(f"not a {self._topic.record.__name__}: {type(error).__name__}: {error}") from error


Decode = Callable[[bytes | None], msgspec.Struct]
