"""Brings a store to the schema that this version writes: numbered files, each applied once and recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sinks.clickhouse.columns import Rows, value_rows
from sinks.clickhouse.store import Store

_FOLDER = Path(__file__).with_name("migrations")
_LEDGER = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version UInt32,
    name String,
    applied DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')
) ENGINE = ReplacingMergeTree ORDER BY version
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered file."""

    version: int
    name: str
    statements: Sequence[str]


def migrations(folder: Path = _FOLDER) -> list[Migration]:
    """All of them, in order; raises ValueError where two files carry one number."""
    found = [_load(path) for path in sorted(folder.glob("[0-9]*.sql"))]
    numbers = [migration.version for migration in found]
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"two migrations carry one number: {numbers}")
    return found


def migrate(store: Store, folder: Path = _FOLDER) -> list[str]:
    """Apply what is missing and return its names; a file that was cut short is applied again, whole.

    Statements are written so that a second run changes nothing (IF NOT EXISTS, OR REPLACE).
    """
    store.command(_LEDGER)
    done = {row[0] for row in store.query("SELECT version FROM schema_migrations").rows}
    applied = []
    for migration in migrations(folder):
        if migration.version in done:
            continue
        for statement in migration.statements:
            store.command(statement)
        store.insert(_ledger_row(migration), token=migration.name)
        applied.append(migration.name)
    return applied


def _ledger_row(migration: Migration) -> Rows:
    return value_rows("schema_migrations", [{"version": migration.version, "name": migration.name}])


def _load(path: Path) -> Migration:
    version, _, _ = path.stem.partition("_")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("--")]
    statements = [part.strip() for part in re.split(r";\s*$", "\n".join(lines), flags=re.MULTILINE)]
    return Migration(version=int(version), name=path.stem, statements=[part for part in statements if part])
