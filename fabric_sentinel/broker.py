"""A Kafka broker in a child process, for laptops and demos: librdkafka's mock cluster, no Java, nothing to install.

It speaks the real protocol on a free loopback port: idempotent producers, compression, consumer groups, committed
offsets with metadata. It keeps everything in memory, of each partition only the newest 5 MB or 100,000 batches
(fixed inside librdkafka), and neither compacts nor serves CreateTopics. The first member of a group is served within
0.4 s; after that a rebalance, a restart included, takes the members' session timeout less one second. Claims about
delivery need a real broker.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

ANSWER_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0


class BrokerError(RuntimeError):
    """The embedded broker did not start, or topics are not as asked."""


class EmbeddedBroker:
    """A broker that lives no longer than its parent process.

    Topics are created here, with their partition counts, before clients touch them: a client that asks for an
    unknown topic makes it with four partitions.
    """

    def __init__(self, topics: Mapping[str, int] | None = None) -> None:
        self._wanted = dict(topics or {})
        self._child: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None
        self._bootstrap = ""

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:port` while running, else an empty string."""
        return self._bootstrap

    @property
    def pid(self) -> int | None:
        """Process id of the broker while running."""
        return self._child.pid if self._child else None

    def start(self) -> str:
        """Start the child, create the topics and return `127.0.0.1:port`; raises BrokerError."""
        if self._child:
            return self._bootstrap
        self._log = tempfile.TemporaryFile("w+", prefix="embedded-broker-")  # noqa: SIM115 (closed by stop)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "fabric_sentinel.mock_cluster", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._bootstrap = self._answer("its address")
        self.create(self._wanted)
        return self._bootstrap

    def create(self, topics: Mapping[str, int]) -> None:
        """Create each topic with its partition count; one that is there with the same count is fine."""
        if not self._child or not self._child.stdin:
            raise BrokerError("the embedded broker is not running")
        try:
            self._child.stdin.write(json.dumps(dict(topics)) + "\n")
            self._child.stdin.flush()
        except OSError as error:
            raise self._failure("it is gone") from error
        refused = json.loads(self._answer("topics"))
        if refused:
            raise BrokerError("; ".join(f"topic {name}: {why}" for name, why in refused.items()))

    def stop(self) -> None:
        """End the child and wait for it; safe to call twice."""
        child, self._child, self._bootstrap = self._child, None, ""
        if child:
            for pipe in (child.stdin, child.stdout):
                if pipe:
                    pipe.close()
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if self._log:
            self._log.close()
            self._log = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answer(self, about: str) -> str:
        """One line from the child; raises BrokerError when it says nothing for ANSWER_TIMEOUT_S."""
        out = self._child.stdout if self._child else None
        ready = select.select([out], [], [], ANSWER_TIMEOUT_S)[0] if out else []
        line = out.readline().strip() if out and ready else ""
        if not line:
            raise self._failure(f"no answer about {about}")
        return line

    def _failure(self, what: str) -> BrokerError:
        log = ""
        if self._log:
            self._log.seek(0)
            log = self._log.read()[-2000:].strip()
        self.stop()
        return BrokerError(f"embedded broker: {what}" + (f"\n{log}" if log else ""))


def ensure_topics(bootstrap: str, topics: Mapping[str, int], *, timeout_s: float = 10.0) -> None:
    """Make sure that each topic exists with its partition count; raises BrokerError naming all that differ.

    Missing topics are created where the broker can (an embedded one cannot: use EmbeddedBroker.create). A count
    that differs is never changed.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    deadline = time.monotonic() + timeout_s
    _create_missing(admin, topics, timeout_s)
    while wrong := _differences(admin, topics, timeout_s):
        if time.monotonic() > deadline:
            raise BrokerError("; ".join(wrong))
        time.sleep(0.05)


def _create_missing(admin: AdminClient, topics: Mapping[str, int], timeout_s: float) -> None:
    there = admin.list_topics(timeout=timeout_s).topics
    missing = [NewTopic(name, num_partitions=count) for name, count in topics.items() if name not in there]
    for future in (admin.create_topics(missing) if missing else {}).values():
        try:
            future.result(timeout_s)
        except TimeoutError:
            return  # an embedded broker never answers CreateTopics; what is missing is named by the caller
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BrokerError(str(error)) from error


def _differences(admin: AdminClient, topics: Mapping[str, int], timeout_s: float) -> list[str]:
    there = {name: len(topic.partitions) for name, topic in admin.list_topics(timeout=timeout_s).topics.items()}
    return [
        f"topic {name} has {there[name]} partitions, not {count}" if name in there else f"topic {name} is missing"
        for name, count in topics.items()
        if there.get(name) != count
    ]
