"""A real Apache Kafka (KRaft, one node) from Maven Central's jars on Java 17, without Docker."""

import base64
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.paths import cache_dir, need, repo_root
from tests.services.process import ServiceProcess, free_port

VERSION = "4.1.2"
# Where a QEMU guest with user networking reaches the host's loopback.
GUEST_VIEW_OF_HOST = "10.0.2.2"
MECHANISM = "SCRAM-SHA-512"
LOGGING = [
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaConfig=warn",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn",
]


def kafka_jars() -> Path:
    """The folder with Kafka's jars, fetched once; skips, or fails in CI, where that cannot be."""
    need(shutil.which("java"), "Kafka needs Java 17", "apt install openjdk-17-jre-headless")
    lib = cache_dir() / f"kafka-{VERSION}" / "lib"
    if not lib.is_dir():
        need(shutil.which("mvn"), "Kafka's jars come through Maven", "apt install maven")
        script = repo_root() / "infra" / "dev" / "kafka" / "fetch.sh"
        done = subprocess.run([script, lib], capture_output=True, text=True, timeout=900, check=False)
        need(done.returncode == 0, f"Kafka's jars could not be fetched: {done.stderr[-500:]}", f"run {script} {lib}")
    return lib


class Kafka:
    """One broker over one data folder; the data outlives stop(), kill9() and start().

    `users` (name → password) switches SASL/SCRAM and ACLs on: "admin" may do all, the others nothing until an ACL
    says so.
    """

    def __init__(self, folder: Path, *, users: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._users = dict(users or {})
        self._jars = kafka_jars()
        self._port, self._guest_port, self._inner_port, self._quorum_port = (free_port() for _ in range(4))
        self.bootstrap = f"127.0.0.1:{self._port}"
        self.guest_bootstrap = f"{GUEST_VIEW_OF_HOST}:{self._guest_port}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "server.properties").write_text(self._properties())
        # Started by fast paths only: a test broker lives for minutes, and shares two cores with the tests.
        java = ["java", "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        self._java = [*java, *LOGGING, "-cp", f"{self._jars}/*"]
        self.process = ServiceProcess("kafka", [*self._java, "kafka.Kafka", "server.properties"], folder, self._serves)

    def start(self) -> str:
        """Format the folder if new, start, wait until it serves; returns the bootstrap address."""
        if not (self._folder / "data" / "meta.properties").exists():
            self._format()
        self.process.start()
        return self.bootstrap

    def stop(self) -> None:
        self.process.stop()

    def kill9(self) -> None:
        self.process.kill9()

    def pause(self) -> None:
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    def client(self, user: str = "admin") -> dict[str, str | int]:
        """Settings with which a confluent-kafka client reaches this broker as `user`."""
        settings: dict[str, str | int] = {"bootstrap.servers": self.bootstrap, "log_level": 2}
        if self._users:
            settings |= {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": MECHANISM,
                "sasl.username": user,
                "sasl.password": self._users[user],
            }
        return settings

    def create_topics(self, topics: Mapping[str, int], config: Mapping[str, str] | None = None) -> None:
        """Create topics with their partition counts and wait until they are there."""
        wanted = [NewTopic(n, num_partitions=p, config=dict(config or {})) for n, p in topics.items()]
        admin = AdminClient(self.client())  # kept: with it would go its pending answers
        for future in admin.create_topics(wanted, operation_timeout=20).values():
            future.result(30)

    def _serves(self) -> bool:
        try:
            metadata = AdminClient(self.client() | {"log_level": 0}).list_topics(timeout=1)
        except KafkaException:
            return False
        return len(metadata.brokers) == 1

    def _format(self) -> None:
        # The first byte is fixed: an id that began with a dash would be taken for an option.
        cluster_id = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        command = [*self._java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", "server.properties"]
        for name, password in self._users.items():
            command += ["--add-scram", f"{MECHANISM}=[name={name},password={password}]"]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"formatting Kafka's storage failed\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def _properties(self) -> str:
        protocol = "SASL_PLAINTEXT" if self._users else "PLAINTEXT"
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._quorum_port}",
            "listeners": f"CLIENT://127.0.0.1:{self._port},GUEST://127.0.0.1:{self._guest_port},"
            f"INNER://127.0.0.1:{self._inner_port},QUORUM://127.0.0.1:{self._quorum_port}",
            "advertised.listeners": f"CLIENT://{self.bootstrap},GUEST://{self.guest_bootstrap},"
            f"INNER://127.0.0.1:{self._inner_port}",
            "listener.security.protocol.map": f"CLIENT:{protocol},GUEST:{protocol},INNER:PLAINTEXT,QUORUM:PLAINTEXT",
            "inter.broker.listener.name": "INNER",
            "controller.listener.names": "QUORUM",
            "log.dirs": str(self._folder / "data"),
            "num.partitions": "4",
            "auto.create.topics.enable": "true",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "5",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            # After kill -9 the quorum admits the same broker again only once its old session has expired.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "400",
            "log.cleaner.dedupe.buffer.size": "16777216",
        }
        if self._users:
            module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            lines |= {
                "sasl.enabled.mechanisms": MECHANISM,
                f"listener.name.client.{MECHANISM.lower()}.sasl.jaas.config": module,
                f"listener.name.guest.{MECHANISM.lower()}.sasl.jaas.config": module,
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                # ANONYMOUS is the broker itself on its inner listeners; clients come as SCRAM users.
                "super.users": "User:ANONYMOUS;User:admin",
            }
        return "".join(f"{key}={value}\n" for key, value in lines.items())
