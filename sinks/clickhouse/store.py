"""The one place that speaks to ClickHouse: a server, or the same engine embedded in this process (chdb)."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import clickhouse_connect
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from clickhouse_connect.driver.exceptions import ClickHouseError

from sinks.clickhouse.columns import ArrayColumn, ArrayRows, Coded, Holes, Rows
from streams.contract.errors import RetryableError

# Away for now: the batch is kept and sent again. Everything else is a fault of ours and ends the process.
RETRYABLE_CODES = {
    74: "cannot read its files",
    75: "cannot write its files",
    76: "cannot open its files",
    159: "a query timed out",
    160: "too slow",
    202: "too many simultaneous queries",
    209: "socket timeout",
    210: "network error",
    236: "the query was aborted",
    241: "memory limit reached",
    242: "the table is read-only",
    243: "the disk is full",
    252: "too many parts: merges are slower than inserts",
    319: "status of the insert unknown",
    425: "a system call failed",
    999: "Keeper is away",
}
DISK_FULL_SIGNS = ("No space left on device", "NOT_ENOUGH_SPACE", "errno: 28", "File too large")
# A batch of one flush may hold any number of days after an outage; the default of 100 would refuse it for ever.
INSERT_SETTINGS = {"max_partitions_per_insert_block": 0}
# Equal keys inside one block are left for the merge: looking for them costs a third of the insert of samples.
SAMPLE_SETTINGS = {**INSERT_SETTINGS, "optimize_on_insert": 0}
READ_ONLY = {"readonly": 1}


class StoreError(Exception):
    """The store said no, and saying it again will not help; the text is one line for a person."""


class StoreLockedError(StoreError):
    """Another process holds the embedded store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A query's result."""

    columns: list[str]
    rows: list[tuple[object, ...]]


class Store:
    """A connection; not for two threads at once."""

    def __init__(self, dsn: str) -> None:
        """Connect; raises StoreLockedError, StoreError, or RetryableError while a server is away."""
        if (path := embedded_path(dsn)) is not None:
            _refuse_foreign_lock(path)
        # Without a session of its own, a server takes the next insert while it still ends the last
        options = {} if urlparse(dsn).scheme == "chdb" else {"autogenerate_session_id": False}
        with _told():
            self._client = clickhouse_connect.get_client(dsn=dsn, **options)

    def insert(self, rows: Rows, token: str) -> None:
        """One insert; the same token with the same rows again changes nothing."""
        if not rows.count:
            return
        named = {"insert_deduplication_token": token}
        with _told():
            if isinstance(rows, ArrayRows):
                self._client.insert_arrow(rows.table, _arrow(rows.columns), settings={**SAMPLE_SETTINGS, **named})
            else:
                self._client.insert(
                    rows.table,
                    list(rows.columns.values()),
                    column_names=list(rows.columns),
                    column_oriented=True,
                    settings={**INSERT_SETTINGS, **named},
                )

    def command(self, sql: str) -> None:
        """Run a statement that answers nothing."""
        with _told():
            self._client.command(sql)

    def query(self, sql: str, *, read_only: bool = True) -> Answer:
        """Run one query; by default it can change nothing."""
        with _told():
            result = self._client.query(sql, settings=READ_ONLY if read_only else None)
        return Answer(columns=list(result.column_names), rows=[tuple(row) for row in result.result_rows])

    def close(self) -> None:
        """Let go of the connection, and of the embedded store's lock with the last one."""
        self._client.close()


def embedded_path(dsn: str) -> Path | None:
    """The folder of an embedded store; None for a server or for a store in memory."""
    parsed = urlparse(dsn)
    if parsed.scheme != "chdb" or parsed.netloc or parsed.path in ("", ":memory:"):
        return None
    return Path(parsed.path)


def explain(error: BaseException) -> str:
    """An engine's error in one line, without its stack trace and version."""
    text = re.split(r"[,.]? Stack trace|\n", str(error), maxsplit=1)[0]
    return re.sub(r"\s*\(version [^()]*(\([^()]*\))?[^()]*\)", "", text).strip() or type(error).__name__


def is_retryable(error: BaseException) -> bool:
    """True where the store is away, full or overloaded, and the same insert can succeed later."""
    if isinstance(error, OSError):  # A server that does not answer; a full disk under the embedded engine's spool
        return True
    code = getattr(error, "code", None) or _code_in(str(error))
    return code in RETRYABLE_CODES or _disk_is_full(error) or "TOO_MANY_PARTS" in str(error) or _is_transport(error)


@contextmanager
def _told() -> Iterator[None]:
    """Sort the driver's errors into ours."""
    try:
        yield
    except (ClickHouseError, OSError) as error:
        if is_retryable(error):
            raise RetryableError(_why(error)) from error
        raise StoreError(explain(error)) from error


def _why(error: BaseException) -> str:
    if _disk_is_full(error):
        return f"the disk is full: {explain(error)}"
    code = getattr(error, "code", None) or _code_in(str(error))
    known = RETRYABLE_CODES.get(code or 0)
    return f"{known}: {explain(error)}" if known else explain(error)


def _disk_is_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return True
    return any(sign in str(error) for sign in DISK_FULL_SIGNS)


def _is_transport(error: BaseException) -> bool:
    """The HTTP client's own failures carry no ClickHouse code."""
    return getattr(error, "code", None) is None and any(
        sign in str(error) for sign in ("HTTPConnectionPool", "HTTPDriver", "Connection", "timed out")
    )


def _code_in(text: str) -> int | None:
    found = re.search(r"\bCode: (\d+)", text)
    return int(found[1]) if found else None


def _refuse_foreign_lock(path: Path) -> None:
    """Say who holds the store: the engine itself prints that to stderr and raises something empty."""
    status = path / "status"
    if not status.exists():
        return
    try:
        with status.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = re.search(r"PID: (\d+)", status.read_text(errors="replace"))
        if holder and int(holder[1]) == os.getpid():
            return
        who = f"process {holder[1]}" if holder else "another process"
        raise StoreLockedError(
            f"{who} holds the embedded store {path}: stop it, or ask it; one process at a time can open it"
        ) from None


def _arrow(columns: Mapping[str, ArrayColumn]) -> Any:
    return pa.table({name: _arrow_column(column) for name, column in columns.items()})


def _arrow_column(column: ArrayColumn) -> Any:
    if isinstance(column, Coded):
        return pa.DictionaryArray.from_arrays(pa.array(column.codes), pa.array(column.values, pa.string()))
    if isinstance(column, Holes):
        return pa.array(column.values, mask=column.missing)
    return pa.array(np.ascontiguousarray(column))
