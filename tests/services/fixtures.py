"""Pytest fixtures that start the real services, and show their logs when a test that used them fails."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fabric_sentinel.broker import EmbeddedBroker
from tests.services.kafka import Kafka
from tests.services.process import ServiceProcess
from tests.services.prometheus import Prometheus
from tests.services.registry import Registry


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One Kafka for all tests that only use topics of their own: neither stop nor reconfigure it."""
    broker = Kafka(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def new_kafka(tmp_path: Path) -> Iterator[Callable[..., Kafka]]:
    """Makes brokers of the test's own, to kill, freeze or secure: `new_kafka(users={...})`, not yet started."""
    made: list[Kafka] = []

    def make(**options: Any) -> Kafka:
        made.append(Kafka(tmp_path / f"kafka{len(made)}", **options))
        return made[-1]

    make.made = made  # type: ignore[attr-defined]
    yield make
    for broker in made:
        broker.stop()


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """One schema registry for all tests: register under subjects of your own."""
    running = Registry(tmp_path_factory.mktemp("registry"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def new_prometheus(tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    """Makes and starts a Prometheus: `new_prometheus({"sink": "127.0.0.1:9108"}, rule_files=(path,))`."""
    made: list[Prometheus] = []

    def make(targets: dict[str, str], **options: Any) -> Prometheus:
        made.append(Prometheus(tmp_path / f"prometheus{len(made)}", targets, **options))
        made[-1].start()
        return made[-1]

    make.made = made  # type: ignore[attr-defined]
    yield make
    for server in made:
        server.stop()


@pytest.fixture
def new_embedded_broker() -> Iterator[Callable[..., EmbeddedBroker]]:
    """Makes and starts embedded brokers: `new_embedded_broker({"topic": 32})`."""
    made: list[EmbeddedBroker] = []

    def make(topics: dict[str, int] | None = None) -> EmbeddedBroker:
        made.append(EmbeddedBroker(topics))
        made[-1].start()
        return made[-1]

    yield make
    for broker in made:
        broker.stop()


def service_logs(item: pytest.Item) -> list[tuple[str, str]]:
    """(name, end of the log) of each service that a test's fixtures hold."""
    held: list[object] = []
    for value in getattr(item, "funcargs", {}).values():
        held += [value, *getattr(value, "made", [])]
    processes = [getattr(value, "process", None) for value in held]
    return [(p.name, p.log_tail()) for p in processes if isinstance(p, ServiceProcess)]
