"""Kafka in a few lines: carries a flow's outgoing messages back to it, partition by partition, in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

from prometheus_client import CollectorRegistry

from streams.contract.kafka import partition_of
from streams.contract.topics import BY_NAME
from streams.core.settings import CoreSettings
from streams.core_steps import core_makers
from streams.flow import STEP_OF, Flow, Makers
from streams.kafka_log import LogMessage
from streams.metrics import StreamMetrics


class MemoryLog:
    """A flow and all that it ever sent; what it sends to a topic that it reads, it reads at once."""

    def __init__(self, partitions: int, *, makers: Makers | None = None) -> None:
        self.partitions = partitions
        self.sent: dict[str, list[LogMessage]] = defaultdict(list)
        self._offsets: Counter[tuple[str, int]] = Counter()
        self.metrics = StreamMetrics(CollectorRegistry())
        self.flow = Flow(
            makers or core_makers(CoreSettings(), input_partitions=partitions),
            partitions=partitions,
            metrics=self.metrics,
        )

    def put(self, message: LogMessage) -> list[LogMessage]:
        """Append a message to its partition and let the flow take it and all that follows; returns dead letters."""
        letters: list[LogMessage] = []
        waiting = [self._appended(message)]
        while waiting:
            current = waiting.pop(0)
            for out in self.flow.take(current):
                count = BY_NAME[out.topic].partitions(self.partitions)
                partition = partition_of(out.key, count) if out.partition is None else out.partition
                sent = self._appended(
                    LogMessage(topic=out.topic, partition=partition, offset=0, key=out.key, value=out.value)
                )
                self.sent[out.topic].append(sent)
                if out.topic in STEP_OF:
                    waiting.append(sent)
                if out.topic == "dead-letters":
                    letters.append(sent)
        return letters

    def _appended(self, message: LogMessage) -> LogMessage:
        place = (message.topic, message.partition)
        self._offsets[place] += 1
        return replace(message, offset=self._offsets[place] - 1)
