"""Faust's Kafka transport with what 0.15.3 does not let us set; the place where a batch transport will live.

Touches private names of faust-streaming 0.15.3 (pinned); checked by tests/streams/test_transport.py.
"""

from __future__ import annotations

import aiokafka
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport

# Faust hard-codes 1500 ms, which is how long a lone message would wait at the broker before it is handed out.
FETCH_MAX_WAIT_MS = 50


class QuickConsumerThread(AIOKafkaConsumerThread):  # type: ignore[misc]
    """The stock consumer thread, asking the broker not to sit on new messages."""

    def _create_worker_consumer(self, transport: Transport) -> aiokafka.AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_MAX_WAIT_MS  # Read when the consumer starts
        return consumer


class QuickConsumer(Consumer):  # type: ignore[misc]
    """The stock consumer on the quick thread."""

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return QuickConsumerThread(self, loop=self.loop, beacon=self.beacon)


class QuickTransport(Transport):  # type: ignore[misc]
    """The stock transport with the quick consumer."""

    Consumer = QuickConsumer
