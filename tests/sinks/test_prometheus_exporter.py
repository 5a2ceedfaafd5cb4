"""The exporter from end to end: findings in Kafka, series at /metrics, the same again after a restart."""

import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
from confluent_kafka.admin import AdminClient

from fabric_sentinel.broker import EmbeddedBroker
from sinks.prometheus import declared
from sinks.prometheus.exporter import CannotServeError, PrometheusSettings, run
from streams.contract.findings import Incident, Verdict
from streams.contract.header import Source
from streams.contract.kafka import KafkaConnection
from streams.contract.ticks import tick_of_us
from streams.contract.topics import DEAD_LETTERS, EPISODES, INCIDENTS, JOB_STATES, PIPELINE_HEALTH
from tests.front.incidents import confirmed
from tests.services.kafka import Kafka
from tests.services.process import free_port
from tests.services.prometheus import Prometheus, check_metrics
from tests.sinks.records import dead_letter, episode, health, job_state
from tests.sinks.running import QUICK, SESSION_S, TOPIC_COUNTS, produce, running, wait_for

TOLD = [metric for metric in declared.ALL if metric not in (declared.CAUGHT_UP, declared.DROPPED_SERIES)]
CAUGHT_UP = "fabric_sentinel_exporter_caught_up 1.0"
LETTERS = 'fabric_sentinel_dead_letters_total{cluster="lab",component="stream",topic="nic-counters"} 2.0'
OWN = 'component="sink-prometheus"'


@pytest.fixture
def broker(new_embedded_broker: Callable[..., EmbeddedBroker]) -> str:
    return new_embedded_broker(TOPIC_COUNTS).bootstrap


def configured(bootstrap: str, port: int) -> PrometheusSettings:
    return PrometheusSettings(
        kafka=KafkaConnection(bootstrap=bootstrap),
        cluster="lab",
        instance="here:1",
        port=port,
        limits=QUICK,
        health_every_s=0.2,
        session_timeout_s=SESSION_S,
    )


@contextmanager
def exporting(bootstrap: str, port: int) -> Iterator[None]:
    """An exporter that has caught up."""
    with running(lambda stop: run(configured(bootstrap, port), stop)):
        wait_for(lambda: CAUGHT_UP in scrape(port), "the exporter to catch up")
        yield


def scrape(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            return response.read().decode()
    except OSError:
        return ""


def findings(text: str) -> list[str]:
    """All series but those of the exporter's own reports and of dead letters, which begin anew with it."""
    return [line for line in series(text) if OWN not in line and "dead_letters" not in line]


def series(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("fabric_sentinel_")]


def open_now(incident_id: str = "open", revision: int = 1) -> Incident:
    tick = tick_of_us(time.time_ns() // 1000)
    slow = [msgspec.structs.replace(victim, recovered_tick=None) for victim in confirmed().victims]
    return msgspec.structs.replace(
        confirmed(),
        incident_id=incident_id,
        revision=revision,
        recovered_tick=None,
        victims=slow,
        as_of_tick=tick,
        verdict=Verdict.SUSPECTED,
    )


def tell_everything(bootstrap: str) -> None:
    tick = tick_of_us(time.time_ns() // 1000)
    slow = msgspec.structs.replace(episode(), recovered_tick=None, as_of_tick=tick)
    agent = msgspec.structs.replace(health(us=time.time_ns() // 1000), counts={"lost_rdma": 7})
    others = [msgspec.structs.replace(victim, episode_id=f"s-{victim.job}") for victim in confirmed().victims]
    simulated = msgspec.structs.replace(confirmed(), incident_id="simulated", source=Source.SIMULATED, victims=others)
    produce(bootstrap, INCIDENTS, [confirmed(), simulated, open_now()])
    produce(bootstrap, EPISODES, [slow])
    produce(bootstrap, JOB_STATES, [job_state(tick - 50), job_state(tick)])
    produce(bootstrap, PIPELINE_HEALTH, [agent])


def told_twice(bootstrap: str) -> tuple[list[str], list[str]]:
    """The findings that two lives of an exporter tell."""
    port = free_port()
    tell_everything(bootstrap)
    with exporting(bootstrap, port):
        first = findings(scrape(port))
    with exporting(bootstrap, port):
        second = findings(scrape(port))
    return first, second


def test_incidents_are_told_at_once_and_after_a_restart_the_same(broker: str) -> None:
    """The embedded broker knows no offsets by time, so the other topics are read from their ends there."""
    first, second = told_twice(broker)
    assert [re.sub(r"{.*}", "", line) for line in first] == [
        "fabric_sentinel_exporter_caught_up 1.0",
        "fabric_sentinel_incident_open 1.0",
        *["fabric_sentinel_incidents_total 1.0"] * 2,
        *["fabric_sentinel_gpu_lost_seconds_total 1935.36"] * 2,
    ]
    assert first == second


def test_nothing_is_told_before_all_of_it_is_known(broker: str) -> None:
    produce(broker, INCIDENTS, [open_now(str(number)) for number in range(3000)])
    port, seen = free_port(), set[tuple[str, ...]]()

    def caught_up() -> bool:
        seen.add(tuple(findings(scrape(port))))
        return any(CAUGHT_UP in lines for lines in seen)

    with running(lambda stop: run(configured(broker, port), stop)):
        wait_for(caught_up, "the exporter to catch up")
    before = seen - {lines for lines in seen if CAUGHT_UP in lines}
    assert before <= {(), ("fabric_sentinel_exporter_caught_up 0.0",)}
    assert len(seen - before) == 1
    [last] = seen - before
    assert [line.rpartition(" ")[2] for line in last if "incident_open{" in line] == ["3000.0"]


def test_series_follow_the_findings_and_dead_letters_are_counted(broker: str) -> None:
    port = free_port()
    with exporting(broker, port):
        produce(broker, INCIDENTS, [open_now()])
        produce(broker, DEAD_LETTERS, [dead_letter(), dead_letter()])
        wait_for(lambda: "incident_open{" in scrape(port), "the open incident")
        wait_for(lambda: LETTERS in scrape(port), "both letters")
        produce(broker, INCIDENTS, [msgspec.structs.replace(confirmed(), incident_id="open", revision=2)])
        wait_for(lambda: "incidents_total{" in scrape(port), "the incident's end")
        assert "incident_open{" not in scrape(port)


def test_a_taken_port_is_said_in_one_line(broker: str) -> None:
    port = free_port()
    with (
        exporting(broker, port),
        pytest.raises(CannotServeError, match=f"^metrics cannot be served at 127.0.0.1:{port}: .*in use$"),
    ):
        run(configured(broker, port), threading.Event())


@pytest.mark.services
def test_on_a_real_kafka_every_gauge_is_back_after_a_restart_and_nothing_is_committed(
    new_kafka: Callable[..., Kafka],
) -> None:
    kafka = new_kafka()
    kafka.start()
    kafka.create_topics(TOPIC_COUNTS)
    first, second = told_twice(kafka.bootstrap)
    names = {line.partition("{")[0] for line in first}
    left_out = {declared.DEAD_LETTERS, declared.PIPELINE_LAG, declared.CAUGHT_UP, declared.DROPPED_SERIES}
    assert names >= {metric.name for metric in declared.ALL if metric not in left_out}
    assert first == second
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    assert [
        group.group_id for group in admin.list_consumer_groups().result().valid if group.state.name == "STABLE"
    ] == []


@pytest.mark.services
def test_promtool_has_nothing_to_say_and_a_real_prometheus_takes_every_series(
    broker: str, new_prometheus: Callable[..., Prometheus]
) -> None:
    port = free_port()
    with exporting(broker, port):
        tell_everything(broker)
        produce(broker, DEAD_LETTERS, [dead_letter()])
        wait_for(lambda: all(f"{metric.name}{{" in scrape(port) for metric in TOLD), "every metric")
        assert check_metrics(scrape(port)) == ""
        prometheus = new_prometheus({"fabric-sentinel": f"127.0.0.1:{port}"})
        prometheus.wait_for("fabric_sentinel_incident_open")
        assert prometheus.query('count({__name__=~"fabric_sentinel_.*"})')[0][1] == len(series(scrape(port)))
        [(labels, value)] = prometheus.query("fabric_sentinel_job_loss_ratio")
        assert (labels["hpc_job"], labels["job"], value) == ("team-b/PyTorchJob/train", "fabric-sentinel", 0.375)
        assert prometheus.query('{__name__=~"fabric_sentinel_.*",exported_job!=""}') == []
        assert prometheus.query('{__name__=~"fabric_sentinel_.*",exported_instance!=""}') == []
        produce(broker, INCIDENTS, [msgspec.structs.replace(confirmed(), incident_id="open", revision=2)])
        wait_for(lambda: not prometheus.query("fabric_sentinel_incident_open"), "the series to go")
