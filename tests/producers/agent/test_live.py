"""The whole agent against a broker: ports from a sysfs tree at 10 Hz, and real calls of a real libnccl, exactly."""

import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from fabric_sentinel.broker import EmbeddedBroker
from producers.agent import AgentSettings, run
from streams.contract import series
from streams.contract.calls import Column, Op, unpack_rows
from streams.contract.inputs import NcclThroughput, NicCounters
from streams.contract.plumbing import HealthStatus, PipelineHealth
from streams.contract.topics import BY_NAME, NCCL_THROUGHPUT, NIC_COUNTERS, PIPELINE_HEALTH
from streams.contract.wire import Decoder
from tests.kernel.conftest import Caller, bpf, caller, nccl_library  # noqa: F401  (fixtures)
from tests.producers.ports.trees import make_port

TOPICS = (NIC_COUNTERS, NCCL_THROUGHPUT, PIPELINE_HEALTH)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({topic.name: 1 for topic in TOPICS}) as running:
        yield running


class RunningAgent:
    """An agent in a thread, and what it has written so far."""

    def __init__(self, settings: AgentSettings) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=run, args=(settings, self._stop))
        self._thread.start()
        bootstrap = settings.kafka["bootstrap.servers"]
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic.name, 0, 0) for topic in TOPICS])
        self.nic: list[NicCounters] = []
        self.nccl: list[NcclThroughput] = []
        self.health: list[PipelineHealth] = []

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
            for message in self._consumer.consume(100, 0.1):
                record = Decoder(BY_NAME[message.topic()])(message.value())
                for kind, found in (
                    (NicCounters, self.nic),
                    (NcclThroughput, self.nccl),
                    (PipelineHealth, self.health),
                ):
                    if isinstance(record, kind):
                        found.append(record)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(40)
        assert not self._thread.is_alive()
        self._consumer.close()


def test_port_counters_arrive_tick_by_tick_at_ten_hertz(broker: EmbeddedBroker, tmp_path: Path) -> None:
    counter = make_port(tmp_path, counters={"port_xmit_data": 0, "port_rcv_data": 0}) / "counters" / "port_xmit_data"
    agent = RunningAgent(
        AgentSettings(
            kafka={"bootstrap.servers": broker.bootstrap},
            cluster="c",
            node="node-a",
            sysfs=tmp_path,
            rdma_probes=False,
            nccl_probes=False,
            metrics_port=0,
        )
    )
    try:
        agent.until(lambda: len(agent.nic) >= 1, "a first record")
        counter.write_text("123456\n")
        agent.until(lambda: len(agent.nic) >= 6 and len(agent.nccl) >= 6 and agent.health != [], "six flushes")
    finally:
        agent.stop()
    sent: list[int] = []
    for place, record in enumerate(agent.nic[:6]):
        assert (record.seq, record.first_tick, record.ticks) == (place + 1, agent.nic[0].first_tick + 5 * place, 5)
        assert [(port.device, port.port, port.capacity_mbps) for port in record.ports] == [("mlx5_0", 1, 400_000)]
        rows = series.unpack(record.counters, ticks=5, entities=1, names=len(record.counter_names))
        wanted = rows.name == record.counter_names.index("ib/port_xmit_data")
        sent += [value for value in rows.values[wanted][0].tolist() if value > 0]
    assert sent == [123456], "the whole difference, in one tick"
    pairs = [(record.agent_epoch, record.seq, record.first_tick) for record in agent.nic[:6]]
    assert pairs == [(record.agent_epoch, record.seq, record.first_tick) for record in agent.nccl[:6]]
    about = agent.nic[0].about
    assert about is not None
    assert [device.device for device in about.devices] == ["mlx5_0"]
    assert {gap.reason for gap in agent.nccl[0].gaps} == {"switched off by the setting nccl_probes"}
    assert agent.health[0].status is HealthStatus.DEGRADED, "an agent without probes says so"


def test_metrics_are_served_on_loopback(broker: EmbeddedBroker, tmp_path: Path) -> None:
    port = _free_port()
    make_port(tmp_path, counters={"port_xmit_data": 0})
    settings = AgentSettings(
        kafka={"bootstrap.servers": broker.bootstrap}, cluster="c", node="n", sysfs=tmp_path, rdma_probes=False,
        nccl_probes=False, metrics_port=port,
    )  # fmt: skip
    agent = RunningAgent(settings)
    try:
        agent.until(lambda: len(agent.nic) >= 2, "two flushes")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    finally:
        agent.stop()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values["fabric_agent_flushes_total"]) >= 2
    assert values["fabric_agent_epochs_total"] == "1.0"
    assert values["fabric_publish_dropped_messages_total"] == "0.0"
    assert values['fabric_agent_gaps{source="nccl"}'] == "1.0"


@pytest.mark.kernel
def test_calls_of_the_real_library_arrive_exactly(
    broker: EmbeddedBroker,
    tmp_path: Path,
    bpf: None,  # noqa: F811
    nccl_library: Callable[[str], Path],  # noqa: F811
    caller: Callable[[Path], Caller],  # noqa: F811
) -> None:
    library = nccl_library("2.21.5")
    agent = RunningAgent(
        AgentSettings(
            kafka={"bootstrap.servers": broker.bootstrap},
            cluster="c",
            node="n",
            sysfs=tmp_path,
            nccl_libraries=(library,),
        )
    )
    try:
        agent.until(lambda: len(agent.nccl) >= 1, "a first record")
        process = caller(library)
        arguments = ["p:4096", "p:8192", "z:1048576", "i:7", "i:0", "p:blank", "p:0"]
        process.call("ncclAllReduce", *arguments, times=1000)

        def rows() -> list[list[int]]:
            found: list[list[int]] = []
            for record in agent.nccl:
                matrix = unpack_rows(record.rows, communicators=len(record.communicators), ticks=record.ticks)
                owner = [record.processes[member.process].pid for member in record.communicators]
                found += [row for row in matrix.tolist() if owner[row[Column.COMMUNICATOR]] == process.pid]
            return found

        agent.until(lambda: sum(row[Column.CALLS] for row in rows()) >= 1000, "all calls")
        seen = len(agent.nccl)
        agent.until(lambda: len(agent.nccl) >= seen + 2, "two more flushes")
    finally:
        agent.stop()
    assert sum(row[Column.CALLS] for row in rows()) == 1000
    assert sum(row[Column.FAILED] for row in rows()) == 1000, "without a GPU every call fails, and is seen to"
    assert sum(row[Column.CALLS] * row[Column.BYTES] for row in rows()) == 4_194_304_000
    assert {(row[Column.OP], row[Column.DTYPE], row[Column.COUNT]) for row in rows()} == {(Op.ALL_REDUCE, 7, 1 << 20)}
    assert min(row[Column.FIRST_SEQ] for row in rows()) == 1
    assert max(row[Column.LAST_SEQ] for row in rows()) == 1000


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
