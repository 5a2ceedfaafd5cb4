"""Speaks Confluent's Schema Registry API: registers our schemas, resolves ids, and serves the packaged ones."""

from __future__ import annotations

import json
import logging
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fastavro.schema

from streams.contract.errors import InvalidRecordError, RetryableError
from streams.contract.schemas import all_schemas, by_packaged_id, latest
from streams.contract.topics import Topic
from streams.contract.wire import ParsedSchema

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 5.0
STOP_CHECK_S = 0.1
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
INCOMPATIBLE, NOT_FOUND, UNPROCESSABLE = 409, 404, 422


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Under which id a topic's records travel; `registered_id` None: under the packaged one, and `why` says so."""

    topic: str
    registered_id: int | None
    why: str = ""


@dataclass(slots=True, kw_only=True)
class Registry:
    """A configured registry; `SchemaIds` for decoders. Ids are looked up once each."""

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    _known: dict[int, ParsedSchema] = field(default_factory=dict, repr=False)
    _unknown: set[int] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        if urllib.parse.urlsplit(self.url).scheme not in {"http", "https"}:
            raise ValueError(f"the registry's address {self.url!r} is neither http:// nor https://")

    def schema_of(self, schema_id: int) -> ParsedSchema:
        """The schema an id stands for; raises InvalidRecordError if there is none, RetryableError if it is away."""
        if schema_id in self._unknown:
            raise InvalidRecordError(f"the Schema Registry has no schema {schema_id}")
        if schema_id not in self._known:
            self._known[schema_id] = self._fetch(schema_id)
        return self._known[schema_id]

    def register(self, topic: Topic) -> Registration:
        """Register the topic's newest schema under `<topic>-value`.

        A registry that refuses it is no reason to stop: records then travel under the packaged id, which every
        reader of ours resolves by itself. Raises RetryableError while the registry is away.
        """
        subject = urllib.parse.quote(f"{topic.name}-value", safe="")
        body = {"schema": latest(topic.name).text, "schemaType": "AVRO"}
        try:
            return Registration(
                topic=topic.name, registered_id=_id_in(self._ask(f"/subjects/{subject}/versions", body))
            )
        except urllib.error.HTTPError as error:
            detail = _message_in(error)
            if error.code == INCOMPATIBLE:
                why = f"the Schema Registry calls our schema incompatible with its newest for {subject}: {detail}"
            else:
                why = f"the Schema Registry refused our schema for {subject} ({error.code}): {detail}"
            return Registration(topic=topic.name, registered_id=None, why=f"{why}; going on under the packaged id")

    def _fetch(self, schema_id: int) -> ParsedSchema:
        try:
            answer = self._ask(f"/schemas/ids/{schema_id}")
        except urllib.error.HTTPError as error:
            if error.code != NOT_FOUND:
                raise RetryableError(f"the Schema Registry answers {error.code}: {_message_in(error)}") from error
            self._unknown.add(schema_id)
            raise InvalidRecordError(f"the Schema Registry has no schema {schema_id}") from error
        try:
            parsed: ParsedSchema = fastavro.schema.parse_schema(json.loads(str(answer["schema"])))
        except (KeyError, ValueError, fastavro.schema.SchemaParseException) as error:
            self._unknown.add(schema_id)
            raise InvalidRecordError(f"the Schema Registry's schema {schema_id} is not Avro: {error}") from error
        return parsed

    def _ask(self, path: str, body: dict[str, str] | None = None) -> dict[str, object]:
        """GET, or POST where there is a body; raises HTTPError for refusals, RetryableError for the rest."""
        request = urllib.request.Request(  # noqa: S310 (the scheme is checked at construction)
            self.url.rstrip("/") + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": CONTENT_TYPE, "Accept": f"{CONTENT_TYPE}, application/json"},
        )
        if self.user is not None:
            pair = b64encode(f"{self.user}:{self.password or ''}".encode()).decode()
            request.add_header("Authorization", f"Basic {pair}")
        tls = ssl.create_default_context(cafile=str(self.ca)) if self.ca else None
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S, context=tls) as answer:  # noqa: S310
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in {INCOMPATIBLE, NOT_FOUND, UNPROCESSABLE}:
                raise
            raise RetryableError(f"the Schema Registry answers {error.code}") from error
        except (OSError, ValueError) as error:
            raise RetryableError(f"the Schema Registry at {self.url} does not answer: {error}") from error
        return found if isinstance(found, dict) else {}


def register_all(registry: Registry, topics: Iterable[Topic]) -> dict[str, int]:
    """Registry ids by topic, for those that the registry took; what it refused is logged and left out."""
    taken = {}
    for topic in topics:
        registration = registry.register(topic)
        if registration.registered_id is None:
            log.warning("%s", registration.why)
        else:
            taken[topic.name] = registration.registered_id
    return taken


def packaged_answer(path: str) -> Mapping[str, object] | Sequence[object] | None:
    """What a registry that holds exactly the packaged schemas answers to a GET; None where it has nothing."""
    match [urllib.parse.unquote(part) for part in urllib.parse.urlsplit(path).path.strip("/").split("/")]:
        case ["schemas", "types"]:
            return ["AVRO"]
        case ["schemas", "ids", number] if number.isdecimal() and int(number) in by_packaged_id():
            return {"schema": by_packaged_id()[int(number)].text, "schemaType": "AVRO"}
        case ["subjects"]:
            return sorted({f"{schema.topic}-value" for schema in all_schemas()})
        case ["subjects", subject, "versions"]:
            return [s.version for s in all_schemas() if f"{s.topic}-value" == subject] or None
        case ["subjects", subject, "versions", version]:
            return _version(subject, version)
    return None


def _version(subject: str, version: str) -> dict[str, object] | None:
    found = [s for s in all_schemas() if f"{s.topic}-value" == subject and version in {"latest", str(s.version)}]
    if not found:
        return None
    newest = found[-1]
    return {
        "subject": subject,
        "version": newest.version,
        "id": newest.packaged_id,
        "schema": newest.text,
        "schemaType": "AVRO",
    }


class _Handler(BaseHTTPRequestHandler):
    """GET only: nobody can change what is packaged."""

    def do_GET(self) -> None:
        """Answer from the packaged schemas."""
        found = packaged_answer(self.path)
        missing = {"error_code": 40403, "message": "no packaged schema answers to this"}
        body = json.dumps(missing if found is None else found).encode()
        self.send_response(NOT_FOUND if found is None else 200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name is the parent's)
        """A schema that was looked up is no news."""


@contextmanager
def serve(port: int = 0, *, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve the packaged schemas read-only while the block runs; gives the address. Port 0: any free one.

    Confluent's AvroDeserializer reads our topics through it, and so can whatever else resolves ids by this API
    (Connect, ClickHouse's AvroConfluent, a kcat built with Avro; Debian's is not).
    Raises OSError where the port is taken.
    """
    server = ThreadingHTTPServer((host, port), _Handler)
    server.daemon_threads = True
    worker = threading.Thread(target=server.serve_forever, args=(STOP_CHECK_S,), name="schemas", daemon=True)
    worker.start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        worker.join()


def _id_in(answer: dict[str, object]) -> int:
    found = answer.get("id")
    if not isinstance(found, int):
        raise RetryableError(f"the Schema Registry's answer names no id: {answer}")
    return found


def _message_in(error: urllib.error.HTTPError) -> str:
    text = error.read().decode("utf-8", "replace")
    try:
        found = json.loads(text)
    except ValueError:
        return text[:300]
    return str(found.get("message", text))[:300] if isinstance(found, dict) else text[:300]
