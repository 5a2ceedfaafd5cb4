"""The ClickHouse sink as a process of its own, which may kill itself: BOOTSTRAP DSN INSERTS (0: live on)."""

import os
import signal
import sys
import threading

from sinks.batches import Limits
from sinks.clickhouse.columns import Rows
from sinks.clickhouse.sink import ClickHouseSettings, run
from sinks.clickhouse.store import Store
from streams.contract.kafka import KafkaConnection
from tests.sinks.running import SESSION_S


def die_after(inserts: int) -> None:
    """kill -9 as soon as so many inserts are done, before anything else is."""
    insert, done = Store.insert, 0

    def counted(store: Store, rows: Rows, token: str) -> None:
        nonlocal done
        insert(store, rows, token)
        done += token.startswith("nic-counters") and rows.count > 0
        if done == inserts:
            os.kill(os.getpid(), signal.SIGKILL)

    Store.insert = counted  # type: ignore[method-assign, assignment]


def main(bootstrap: str, dsn: str, inserts: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    if int(inserts):
        die_after(int(inserts))
    run(
        ClickHouseSettings(
            kafka=KafkaConnection(bootstrap=bootstrap),
            cluster="lab",
            instance="child",
            dsn=dsn,
            group="killed",
            limits=Limits(sample_linger_s=0.1),
            session_timeout_s=SESSION_S,
        ),
        stop,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
