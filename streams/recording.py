"""The recording: a folder with one standard Avro container per topic and what is needed to run it again.

`<topic>.avro`: each record is {partition, offset, broker_time_ms, key, headers, value, raw}. `value` is the topic's
own record under its own schema, so that any Avro reader sees plain fields; it is null, and `raw` holds the bytes,
where a message could not be a record. `run.json`: settings and code version. `state.avro`: the core's state at the
first offset; absent means that a replay begins cold.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

import fastavro
import fastavro.write
import msgspec

from streams.contract.errors import InvalidRecordError
from streams.contract.plumbing import StateChunk
from streams.contract.schemas import latest
from streams.contract.topics import BY_NAME, INPUTS, STATE, Topic
from streams.contract.validate import check
from streams.kafka_log import LogMessage

FORMAT = 1
CODEC = "deflate"  # Every Avro reader has it
# A backlog is fetched partition by partition; this many records are put back in the brokers' order at a time.
REORDER_RECORDS = 5000
_BYTES_STAY = (bytes,)


class RecordingError(Exception):
    """The folder is no readable recording, or cannot become one."""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What run.json says."""

    format: int = FORMAT
    version: str  # Of the code that recorded
    cluster: str
    partitions: int  # Of the input topics
    settings: dict[str, object] = {}
    began: str | None = None  # RFC 3339
    ended: str | None = None
    records: dict[str, int] = {}  # Per topic
    unreadable: dict[str, int] = {}  # Messages kept as raw bytes, per topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One message of a recording; `record` is None where it could not be one, and `refusal` says why."""

    message: LogMessage
    record: msgspec.Struct | None
    refusal: str = ""


class Sink(Protocol):
    """What fastavro's writer does for us."""

    def write(self, record: Mapping[str, object]) -> None:
        """Add one record."""
        ...

    def flush(self) -> None:
        """Write out the open block."""
        ...


@dataclass(slots=True)
class _Container:
    file: IO[bytes]
    sink: Sink
    records: int = 0
    unreadable: int = 0


@dataclass(slots=True)
class Recorder:
    """Writes a recording; use it as a context manager. Raises RecordingError where one is already there."""

    folder: Path
    run: RunInfo
    _containers: dict[str, _Container] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.glob("*.avro")):
            raise RecordingError(f"{self.folder} already holds a recording: choose another folder")
        self._write_run(self.run)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for container in self._containers.values():
            container.sink.flush()
            container.file.close()
        self._write_run(self.summary())

    def write(self, message: LogMessage, record: msgspec.Struct | None) -> None:
        """Add one message with the record that it holds, or None where it holds none."""
        container = self._containers.get(message.topic) or self._open(BY_NAME[message.topic])
        container.records += 1
        container.unreadable += record is None
        container.sink.write(
            {
                "partition": message.partition,
                "offset": message.offset,
                "broker_time_ms": message.broker_time_ms,
                "key": message.key,
                "headers": message.headers,
                "value": None if record is None else msgspec.to_builtins(record, builtin_types=_BYTES_STAY),
                "raw": message.value if record is None else None,
            }
        )

    def end(self, when: str) -> None:
        """Note the time at which the recording ended."""
        self.run = msgspec.structs.replace(self.run, ended=when)

    def summary(self) -> RunInfo:
        """The run with the counts so far."""
        return msgspec.structs.replace(
            self.run,
            records={name: container.records for name, container in self._containers.items()},
            unreadable={name: c.unreadable for name, c in self._containers.items() if c.unreadable},
        )

    def _open(self, topic: Topic) -> _Container:
        file = (self.folder / f"{topic.name}.avro").open("wb")
        sink = fastavro.write.Writer(file, fastavro.parse_schema(container_schema(topic)), CODEC)
        self._containers[topic.name] = container = _Container(file, sink)
        return container

    def _write_run(self, run: RunInfo) -> None:
        text = json.dumps(msgspec.to_builtins(run), indent=2, ensure_ascii=False)
        (self.folder / "run.json").write_text(text + "\n", encoding="utf-8")


def container_schema(topic: Topic) -> dict[str, object]:
    """The schema of one topic's container."""
    return {
        "type": "record",
        "name": "Recorded",
        "namespace": "fabric_sentinel.recording.v1",
        "doc": f"One message of {topic.name} as it lay in the log.",
        "fields": [
            {"name": "partition", "type": "int"},
            {"name": "offset", "type": "long"},
            {"name": "broker_time_ms", "type": ["null", "long"], "default": None},
            {"name": "key", "type": ["null", "bytes"], "default": None},
            {"name": "headers", "type": {"type": "map", "values": "bytes"}, "default": {}},
            {"name": "value", "type": ["null", json.loads(latest(topic.name).text)], "default": None},
            {"name": "raw", "doc": "Set where value is null", "type": ["null", "bytes"], "default": None},
        ],
    }


def run_info(folder: Path) -> RunInfo:
    """What run.json says; raises RecordingError."""
    try:
        return msgspec.json.decode((folder / "run.json").read_bytes(), type=RunInfo)
    except (OSError, msgspec.DecodeError) as error:
        raise RecordingError(f"{folder} is no recording: {error}") from error


def read_recording(folder: Path, topics: Iterable[Topic] = INPUTS) -> Iterator[Recorded]:
    """Its messages, roughly in the brokers' order; inside one topic and partition exactly as they lay in the log."""
    return merge_by_time([read_container(folder / f"{topic.name}.avro", topic) for topic in topics])


def read_container(path: Path, topic: Topic) -> Iterator[Recorded]:
    """One topic's messages in the file's order; nothing where there is no file. Raises RecordingError."""
    if not path.exists():
        return
    with path.open("rb") as file:
        try:
            for entry in fastavro.reader(file, reader_schema=fastavro.parse_schema(container_schema(topic))):
                yield _recorded(topic, entry)
        except (EOFError, ValueError, fastavro.read.SchemaResolutionError) as error:
            raise RecordingError(f"{path} cannot be read on: {type(error).__name__}: {error}") from error


def read_state(folder: Path) -> bytes | None:
    """The core's state at the first offset; None where the recording begins cold. Raises RecordingError."""
    path = folder / "state.avro"
    if not path.exists():
        return None
    with path.open("rb") as file:
        try:
            chunks = list(fastavro.reader(file, reader_schema=latest(STATE.name).parsed))
        except (EOFError, ValueError, fastavro.read.SchemaResolutionError) as error:
            raise RecordingError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    return b"".join(chunk["body"] for chunk in sorted(chunks, key=itemgetter("chunk")))


def write_state(folder: Path, chunks: Iterable[StateChunk]) -> None:
    """Write state.avro: the chunks of one snapshot."""
    entries = [msgspec.to_builtins(chunk, builtin_types=_BYTES_STAY) for chunk in chunks]
    with (folder / "state.avro").open("wb") as file:
        fastavro.writer(file, latest(STATE.name).parsed, entries, CODEC)


def merge_by_time(streams: Iterable[Iterator[Recorded]], *, window: int = REORDER_RECORDS) -> Iterator[Recorded]:
    """Several streams as one by broker time, each put in order first; no partition's own order ever changes."""
    timed = [_timed(stream, rank, window) for rank, stream in enumerate(streams)]
    return (item[3] for item in heapq.merge(*timed, key=itemgetter(0, 1, 2)))


def _timed(stream: Iterator[Recorded], rank: int, window: int) -> Iterator[tuple[int, int, int, Recorded]]:
    newest: dict[int, int] = {}
    waiting: list[tuple[int, int, int, Recorded]] = []
    for number, recorded in enumerate(stream):
        partition = recorded.message.partition
        newest[partition] = max(newest.get(partition, 0), recorded.message.broker_time_ms or 0)
        heapq.heappush(waiting, (newest[partition], rank, number, recorded))
        if len(waiting) > window:
            yield heapq.heappop(waiting)
    while waiting:
        yield heapq.heappop(waiting)


def _recorded(topic: Topic, entry: Mapping[str, object]) -> Recorded:
    place = {name: entry[name] for name in ("partition", "offset", "broker_time_ms", "key", "headers")}
    message = msgspec.convert(
        {**place, "topic": topic.name, "value": entry["raw"]}, LogMessage, builtin_types=_BYTES_STAY
    )
    return _checked(message, entry["value"], topic.record)


def _checked(message: LogMessage, value: object, kind: type[msgspec.Struct]) -> Recorded:
    try:
        if value is None:
            raise InvalidRecordError("the message could not be a record when it was recorded")
        record = msgspec.convert(value, kind, builtin_types=_BYTES_STAY)
        check(record)
    except (InvalidRecordError, msgspec.ValidationError) as error:
        return Recorded(message=message, record=None, refusal=str(error))
    return Recorded(message=message, record=record)
