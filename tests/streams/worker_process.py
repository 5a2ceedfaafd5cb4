"""A stream worker as its own process: `python -m tests.streams.worker_process BOOTSTRAP PARTITIONS fake|real`."""

from __future__ import annotations

import logging
import sys

from streams.app import WorkerSettings, run_worker
from streams.contract.kafka import KafkaConnection
from tests.streams.fake_core import fake_makers

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    run_worker(
        WorkerSettings(
            connection=KafkaConnection(bootstrap=sys.argv[1]),
            cluster="test",
            partitions=int(sys.argv[2]),
            health_every_s=1.0,
        ),
        makers=fake_makers() if sys.argv[3] == "fake" else None,
    )
