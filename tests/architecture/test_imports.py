"""The import rules of the code map, and one driver library in one file."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import repo_root

PACKAGES = ("fabric_sentinel", "producers", "sinks", "streams")

# Each driver library and the only files that may import it.
DRIVERS = {
    "aiokafka": {"streams/transport.py"},
    "bcc": {"producers/kernel/loader.py"},
    "clickhouse_connect": {"sinks/clickhouse/store.py"},
    "confluent_kafka": {
        "fabric_sentinel/broker.py",
        "fabric_sentinel/mock_cluster.py",
        "producers/publish.py",
        "sinks/consume.py",
        "streams/kafka_log.py",
        "streams/topics_admin.py",
    },
    "faust": {"streams/app.py", "streams/transport.py"},
    "pyarrow": {"sinks/clickhouse/store.py"},
    "pydantic": {"fabric_sentinel/settings.py"},
}


def imported_roots(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def product_files() -> list[Path]:
    return [path for package in PACKAGES for path in (repo_root() / package).rglob("*.py")]


def test_the_layers_import_only_what_the_code_map_allows() -> None:
    linter = Path(sys.executable).with_name("lint-imports")

    done = subprocess.run([linter, "--no-cache"], cwd=repo_root(), capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("library", DRIVERS)
def test_a_driver_library_is_imported_in_its_one_place(library: str) -> None:
    users = {str(file.relative_to(repo_root())) for file in product_files() if library in set(imported_roots(file))}

    assert users <= DRIVERS[library], f"{library} is imported outside its place"


def test_the_schema_folder_is_data_and_never_shadows_apache_avro() -> None:
    assert not list((repo_root() / "avro").rglob("*.py"))
