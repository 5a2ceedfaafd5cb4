"""The same sink on a ClickHouse server, in a container."""

import time
from collections.abc import Iterator

import pytest

from sinks.clickhouse.migrate import migrate
from sinks.clickhouse.query import query, read_incidents
from sinks.clickhouse.sink import ClickHouseSink
from sinks.clickhouse.store import Store, StoreError
from streams.contract.errors import RetryableError
from streams.contract.topics import INCIDENTS, NCCL_THROUGHPUT, NIC_COUNTERS
from tests.sinks.batch import batch
from tests.sinks.records import incidents, nccl, nic

pytestmark = pytest.mark.docker
IMAGE = "clickhouse/clickhouse-server:25.8"
START_S = 120.0


@pytest.fixture(scope="module")
def server_dsn() -> Iterator[str]:
    docker = pytest.importorskip("docker")
    containers = pytest.importorskip("testcontainers.core.container")
    try:
        docker.from_env().ping()
    except docker.errors.DockerException as error:
        pytest.skip(f"no Docker engine answers: {error}")
    container = containers.DockerContainer(IMAGE).with_exposed_ports(8123).with_env("CLICKHOUSE_PASSWORD", "secret")
    with container as running:
        host, port = running.get_container_host_ip(), running.get_exposed_port(8123)
        yield f"http://default:secret@{host}:{port}/default"


def opened(dsn: str) -> Store:
    deadline = time.monotonic() + START_S
    while True:
        try:
            return Store(dsn)
        except RetryableError:
            assert time.monotonic() < deadline, "the server does not come up"
            time.sleep(0.5)


def test_a_server_takes_and_gives_back_what_the_embedded_engine_does(server_dsn: str) -> None:
    store = opened(server_dsn)
    migrate(store)
    assert migrate(store) == []
    sink = ClickHouseSink(store)

    for _ in range(2):
        sink.write(batch(NIC_COUNTERS, [nic(), nic(seq=2)]))
        sink.write(batch(NCCL_THROUGHPUT, [nccl()]))
        sink.write(batch(INCIDENTS, incidents()))

    assert read_incidents(store) == incidents()
    assert store.query("SELECT count() FROM port_samples").rows == [(18,)]
    assert store.query("SELECT count() FROM port_runs").rows == [(10,)]
    assert query(server_dsn, "SELECT count() FROM nccl_calls_current").rows == [(1,)]
    with pytest.raises(StoreError, match="readonly"):
        query(server_dsn, "DROP TABLE incidents")
    store.close()
