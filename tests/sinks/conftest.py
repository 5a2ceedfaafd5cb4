"""A real store for each test: the embedded engine, one folder for the process, one database for the test."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from sinks.clickhouse.migrate import migrate
from sinks.clickhouse.store import Store


@pytest.fixture(scope="module")
def store_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The engine takes one folder a process, and lets go of it when its last connection closes."""
    folder = tmp_path_factory.mktemp("chdb")
    keeper = Store(f"chdb://{folder}")
    yield folder
    keeper.close()


@pytest.fixture
def dsn(store_folder: Path) -> str:
    """An empty database of the test's own."""
    name = f"t{uuid4().hex}"
    store = Store(f"chdb://{store_folder}")
    store.command(f"CREATE DATABASE {name}")
    store.close()
    return f"chdb://{store_folder}?database={name}"


@pytest.fixture
def store(dsn: str) -> Iterator[Store]:
    """A store with the schema in place."""
    opened = Store(dsn)
    migrate(opened)
    yield opened
    opened.close()
