"""Reading what the sink wrote: any SELECT, and the incidents as the records they were."""

from __future__ import annotations

from sinks.clickhouse.record_rows import incident_of
from sinks.clickhouse.store import Answer, Store, StoreError, embedded_path
from streams.contract.findings import Incident


def query(dsn: str, sql: str) -> Answer:
    """One read-only query on a store of its own; raises StoreError with one line for a person.

    RetryableError says that a server is away for now.
    """
    store = _existing(dsn)
    try:
        return store.query(sql.strip().rstrip(";"))
    finally:
        store.close()


def stored_incidents(dsn: str) -> list[Incident]:
    """As `read_incidents`, on a store of its own; raises as `query` does."""
    store = _existing(dsn)
    try:
        return read_incidents(store)
    finally:
        store.close()


def read_incidents(store: Store) -> list[Incident]:
    """The last revision of every incident that stands (is not merged), by onset, equal to what was written."""
    answer = store.query("SELECT record FROM incidents_current ORDER BY onset_tick, incident_id")
    return [incident_of(str(row[0])) for row in answer.rows]


def _existing(dsn: str) -> Store:
    """Opening an embedded store would make it: a question must not."""
    path = embedded_path(dsn)
    if path is not None and not (path.is_dir() and any(path.iterdir())):
        raise StoreError(f"there is no embedded store at {path}: nothing has been written there yet")
    return Store(dsn)
