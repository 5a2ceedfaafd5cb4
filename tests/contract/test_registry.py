"""A registry's ids and the packaged ones live on one topic, and a registry's refusal or absence stops nobody."""

from __future__ import annotations

import base64
import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from streams.contract.errors import InvalidRecordError, RetryableError
from streams.contract.registry import Registry, register_all, serve
from streams.contract.schemas import all_schemas, latest
from streams.contract.topics import ALL, INCIDENTS, NIC_COUNTERS
from streams.contract.wire import Decoder, Encoder
from tests.contract.examples import EXAMPLES, NIC
from tests.paths import shared

Answer = tuple[int, str]


class FakeRegistry:
    """Answers what the test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str, dict[str, str], str]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                fake.asked.append((self.command, self.path, dict(self.headers), body))
                code, text = fake.answers.get(self.path, (404, '{"error_code": 40403, "message": "Schema not found"}'))
                self.send_response(code)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            do_POST = do_GET  # noqa: N815 (the parent's name)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._worker = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._worker.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._worker.join()


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    running = FakeRegistry()
    yield running
    running.stop()


def test_registering_gives_the_registrys_small_id(fake: FakeRegistry) -> None:
    fake.answers["/subjects/nic-counters-value/versions"] = (200, '{"id": 12}')

    registration = Registry(url=fake.url).register(NIC_COUNTERS)

    assert (registration.registered_id, registration.why) == (12, "")
    command, _, _, body = fake.asked[0]
    assert (command, json.loads(body)) == ("POST", {"schema": latest("nic-counters").text, "schemaType": "AVRO"})


def test_a_consumer_looks_an_id_up_once(fake: FakeRegistry) -> None:
    fake.answers["/schemas/ids/12"] = (200, json.dumps({"schema": latest("nic-counters").text}))
    decode = Decoder(NIC_COUNTERS, registry=Registry(url=fake.url))
    value = Encoder(NIC_COUNTERS, registered_id=12)(NIC)
    assert int.from_bytes(value[1:5], "big") == 12

    assert [decode(value), decode(value), decode(Encoder(NIC_COUNTERS)(NIC))] == [NIC, NIC, NIC]

    assert len(fake.asked) == 1


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_incompatible_schema_goes_on_under_the_packaged_id_and_says_so(fake: FakeRegistry, number: int) -> None:
    texts = json.loads(shared("corpus", "kafka_clickhouse", "schema_registry_409_texts.json").read_text())
    fake.answers["/subjects/nic-counters-value/versions"] = (409, texts[number]["text"])

    registration = Registry(url=fake.url).register(NIC_COUNTERS)

    assert registration.registered_id is None
    assert "incompatible with its newest for nic-counters-value" in registration.why
    assert registration.why.endswith("going on under the packaged id")


def test_only_topics_that_the_registry_took_get_its_ids(fake: FakeRegistry, caplog: pytest.LogCaptureFixture) -> None:
    fake.answers["/subjects/nic-counters-value/versions"] = (200, '{"id": 12}')
    fake.answers["/subjects/incidents-value/versions"] = (409, '{"error_code": 409, "message": "no"}')

    with caplog.at_level(logging.WARNING):
        ids = register_all(Registry(url=fake.url), [NIC_COUNTERS, INCIDENTS])

    assert ids == {"nic-counters": 12}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "incidents-value" in caplog.text


def test_an_id_that_nobody_registered_is_an_invalid_record_and_not_asked_for_again(fake: FakeRegistry) -> None:
    registry = Registry(url=fake.url)
    for _ in range(3):
        with pytest.raises(InvalidRecordError, match="has no schema 99"):
            registry.schema_of(99)
    assert len(fake.asked) == 1


@pytest.mark.parametrize("text", ['{"schema": "{"}', '{"schema": "{\\"type\\": \\"recrod\\"}"}', "{}"])
def test_a_schema_that_is_not_avro_is_an_invalid_record(fake: FakeRegistry, text: str) -> None:
    fake.answers["/schemas/ids/5"] = (200, text)
    with pytest.raises(InvalidRecordError, match="schema 5 is not Avro"):
        Registry(url=fake.url).schema_of(5)


@pytest.mark.parametrize(
    "ask", [lambda registry: registry.schema_of(5), lambda registry: registry.register(NIC_COUNTERS)]
)
def test_an_absent_or_failing_registry_asks_for_patience(fake: FakeRegistry, ask: Callable[[Registry], object]) -> None:
    fake.answers["/schemas/ids/5"] = (503, "busy")
    fake.answers["/subjects/nic-counters-value/versions"] = (503, "busy")
    with pytest.raises(RetryableError, match="answers 503"):
        ask(Registry(url=fake.url))
    with pytest.raises(RetryableError, match="does not answer"):
        ask(Registry(url="http://127.0.0.1:1"))


def test_a_user_is_sent_and_the_password_never_shown(fake: FakeRegistry) -> None:
    fake.answers["/schemas/ids/5"] = (200, json.dumps({"schema": latest("nic-counters").text}))
    registry = Registry(url=fake.url, user="me", password="hush")

    registry.schema_of(5)

    assert fake.asked[0][2]["Authorization"] == "Basic " + base64.b64encode(b"me:hush").decode()
    assert "hush" not in repr(registry)


def test_an_address_that_is_no_web_address_is_refused() -> None:
    with pytest.raises(ValueError, match="neither http"):
        Registry(url="file:///etc/passwd")


@pytest.mark.parametrize("key", EXAMPLES, ids=".".join)
def test_confluents_deserializer_reads_our_messages_through_the_packaged_server(key: tuple[str, str]) -> None:
    topic = next(topic for topic in ALL if topic.name == key[0])
    with serve() as url, SchemaRegistryClient({"url": url}) as client:
        read = AvroDeserializer(client)(
            Encoder(topic)(EXAMPLES[key]), SerializationContext(topic.name, MessageField.VALUE)
        )
    assert read["cluster" if "cluster" in topic.record.__struct_fields__ else "component"] in {"lab", "stream"}


def test_the_packaged_server_says_what_it_has_and_nothing_else() -> None:
    with serve() as url:

        def get(path: str) -> Any:
            with urllib.request.urlopen(url + path, timeout=5) as answer:  # noqa: S310 (loopback)
                return json.load(answer)

        for schema in all_schemas():
            assert json.loads(get(f"/schemas/ids/{schema.packaged_id}")["schema"]) == json.loads(schema.text)
        assert get("/subjects") == sorted(f"{topic.name}-value" for topic in ALL)
        assert get("/subjects/episodes-value/versions") == [1]
        newest = get("/subjects/episodes-value/versions/latest")
        assert (newest["id"], newest["version"]) == (latest("episodes").packaged_id, 1)
        for path in ("/schemas/ids/7", "/schemas/ids/x", "/subjects/nope-value/versions", "/", "/../../etc/passwd"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(path)


def test_the_packaged_server_takes_no_schema() -> None:
    with serve() as url:
        request = urllib.request.Request(f"{url}/subjects/x-value/versions", data=b"{}")  # noqa: S310
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(request, timeout=5)  # noqa: S310
