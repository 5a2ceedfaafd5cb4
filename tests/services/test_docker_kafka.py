"""The compose file's Kafka image, with its environment, delivers, where a Docker engine answers."""

import subprocess
import time
from collections.abc import Iterator

import pytest
import yaml
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from testcontainers.core.container import DockerContainer

from fabric_sentinel.broker import ensure_topics
from tests.paths import repo_root
from tests.services.process import free_port, wait_until

pytestmark = [pytest.mark.docker, pytest.mark.services, pytest.mark.timeout(600)]


def engine_answers() -> bool:
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    if not engine_answers():
        pytest.skip("no Docker engine answers; fix: start one (the same promises are tested on Maven's Kafka)")
    service = yaml.safe_load((repo_root() / "infra" / "docker-compose.yml").read_text())["services"]["kafka"]
    port = free_port()
    address = f"127.0.0.1:{port}"
    container = DockerContainer(service["image"]).with_bind_ports(9092, port).with_kwargs(hostname="kafka")
    for key, value in service["environment"].items():
        container = container.with_env(key, value.replace("HOST://127.0.0.1:9092", f"HOST://{address}"))

    def serves() -> bool:
        try:
            return len(AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=1).brokers) == 1
        except KafkaException:
            return False

    with container:
        wait_until(serves, "Kafka in Docker serves", 120)
        yield address


def test_the_image_delivers_every_message_to_a_group(bootstrap: str) -> None:
    ensure_topics(bootstrap, {"docker": 8}, timeout_s=30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "zstd"})
    for number in range(1000):
        producer.produce("docker", value=b"%d" % number)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["docker"])
    values: list[int] = []
    deadline = time.monotonic() + 60
    while len(values) < 1000 and time.monotonic() < deadline:
        values += [int(message.value()) for message in consumer.consume(1000, 0.5) if not message.error()]
    consumer.close()
    assert sorted(values) == list(range(1000))


def test_a_misspelt_topic_fails_instead_of_appearing(bootstrap: str) -> None:
    codes: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 5000, "log_level": 0})
    producer.produce("nic-countres", b"x", on_delivery=lambda error, _message: codes.append(str(error)))
    producer.flush(20)
    assert len(codes) == 1
    assert "nic-countres" not in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
