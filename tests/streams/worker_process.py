"""A stream worker as its own process: `python -m tests.streams.worker_process BOOTSTRAP PARTITIONS fake|real`.

Environment: USER_NAME and USER_PASSWORD for SCRAM, REGISTRY for a Schema Registry's address.
"""

from __future__ import annotations

import logging
import os
import sys

from streams.app import WorkerSettings, run_worker
from streams.contract.kafka import KafkaConnection
from streams.contract.registry import Registry
from tests.streams.fake_core import fake_makers


def connection(bootstrap: str) -> KafkaConnection:
    if "USER_NAME" not in os.environ:
        return KafkaConnection(bootstrap=bootstrap)
    return KafkaConnection(
        bootstrap=bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_username=os.environ["USER_NAME"],
        sasl_password=os.environ["USER_PASSWORD"],
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    run_worker(
        WorkerSettings(
            connection=connection(sys.argv[1]),
            cluster="test",
            partitions=int(sys.argv[2]),
            registry=Registry(url=os.environ["REGISTRY"]) if "REGISTRY" in os.environ else None,
            health_every_s=1.0,
        ),
        makers=fake_makers() if sys.argv[3] == "fake" else None,
    )
