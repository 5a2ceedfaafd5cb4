"""Messages to Kafka from programs that must never wait for it: the newest bytes are kept while the broker is away."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

DEFAULT_BUFFER_BYTES = 64 * 2**20
# What is handed to librdkafka at once. The rest waits here, where the oldest can be dropped when room runs out.
WINDOW_BYTES = 4 * 2**20
WINDOW_MESSAGES = 5_000
WINDOW_SHARE = 8  # of the bound, at most: these few stay the oldest for the seconds until absence is noticed
MESSAGE_OVERHEAD_BYTES = 200  # what a queued message costs beside its key and value, in Python's objects
AWAY_AFTER_S = 5.0  # a delivery takes milliseconds; leader elections of a healthy cluster take a second or two
PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 1.0
TAKE_BACK_TIMEOUT_S = 1.0
ERROR_LOG_EVERY_S = 60.0  # librdkafka repeats "connection refused" about 15 times a second
POLL_S = 0.05
IDLE_S = 0.5
# Answers about one message: sending it again cannot help.
_REFUSED_FOR_GOOD = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.POLICY_VIOLATION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._INVALID_ARG,
)

_of_the_parent: list[Producer] = []  # never touched in a child: librdkafka's threads did not survive the fork


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishCounts:
    """Messages since the process began; `waiting` and `in_flight` are as of now."""

    accepted: int = 0
    delivered: int = 0
    returned: int = 0  # given back by the client while the broker was away, and queued again
    dropped: int = 0  # the oldest, to keep within the bound
    dropped_bytes: int = 0
    refused: int = 0  # too large, no such topic, not allowed
    broker_errors: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    in_flight: int = 0
    away: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What was not delivered when the publisher closed."""

    messages: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outgoing:
    order: int
    topic: str
    key: bytes | None
    value: bytes
    partition: int | None
    headers: Mapping[str, bytes]

    @property
    def size_bytes(self) -> int:
        return len(self.value) + len(self.key or b"") + MESSAGE_OVERHEAD_BYTES


class Publisher:
    """Takes messages without ever blocking, delivers them in order from a thread of its own, resumes by itself.

    Messages of one key keep their order. Delivery is at least once: what was sent but not acknowledged when a
    broker went away is sent again. Waiting and in-flight messages together stay under `buffer_bytes`; over it the
    oldest are dropped and counted. `kafka` holds connection settings (`bootstrap.servers`, security) only.
    After a fork the child starts with an empty queue and a producer of its own. Raises ValueError, naming the
    setting, where librdkafka refuses one.
    """

    def __init__(
        self,
        kafka: Mapping[str, str | int | float | bool],
        *,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        away_after_s: float = AWAY_AFTER_S,
        probe_every_s: float = PROBE_EVERY_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = dict(kafka)
        self._buffer_bytes = buffer_bytes
        self._window_bytes = max(1, min(WINDOW_BYTES, buffer_bytes // WINDOW_SHARE))
        self._away_after_s = away_after_s
        self._probe_every_s = probe_every_s
        self._now_s = now_s
        self._log = structlog.get_logger("publish")
        self._producer: Producer | None = None
        self._thread: threading.Thread | None = None
        self._waiting: deque[_Outgoing] = deque()
        self._in_flight: dict[int, _Outgoing] = {}
        self._given_back: list[_Outgoing] = []
        self._begin()
        self._new_producer()  # refuses a wrong setting now; dropped again, because a fork may follow

    def publish(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        partition: int | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Queue one message and return at once; messages published after `close` are dropped and counted."""
        if os.getpid() != self._pid:
            self._begin_in_child()
        with self._changed:
            self._accepted += 1
            message = _Outgoing(
                order=self._accepted, topic=topic, key=key, value=value, partition=partition, headers=headers or {}
            )
            self._waiting.append(message)
            self._waiting_bytes += message.size_bytes
            self._keep_within_bound()
            if self._closing:
                self._drop_oldest()
            elif self._thread is None:
                self._thread = threading.Thread(target=self._run, name="publish", daemon=True)
                self._thread.start()
            self._changed.notify()

    @property
    def counts(self) -> PublishCounts:
        """The numbers as of now."""
        with self._changed:
            return PublishCounts(
                accepted=self._accepted,
                delivered=self._delivered,
                returned=self._returned,
                dropped=self._dropped,
                dropped_bytes=self._dropped_bytes,
                refused=self._refused,
                broker_errors=self._broker_errors,
                waiting=len(self._waiting),
                waiting_bytes=self._waiting_bytes,
                in_flight=len(self._in_flight),
                away=self._away,
            )

    def close(self, timeout_s: float) -> Left:
        """Deliver what is left, for at most `timeout_s`; says what could not be delivered."""
        with self._changed:
            self._closing = True
            self._close_by_s = self._now_s() + timeout_s
            thread = self._thread if os.getpid() == self._pid else None
            self._changed.notify()
        if thread is not None:
            thread.join(timeout_s + PROBE_TIMEOUT_S + 2 * POLL_S)
        with self._changed:
            lost = [*self._in_flight.values(), *self._waiting]
            left = Left(messages=len(lost), size_bytes=sum(len(message.value) for message in lost))
        if left.messages:
            self._log.warning("closed with messages left", messages=left.messages, size_bytes=left.size_bytes)
        return left

    # Everything below runs in the publisher's own thread, except where it says so.

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._thread = None
        self._waiting = deque()
        self._in_flight = {}
        self._given_back = []
        self._waiting_bytes = self._in_flight_bytes = 0
        self._accepted = self._delivered = self._returned = self._refused = 0
        self._dropped = self._dropped_bytes = self._broker_errors = 0
        self._paused = self._away = self._closing = self._broken = False
        self._close_by_s = self._next_probe_s = self._error_logged_s = self._since_s = 0.0
        self._last_error = ""
        self._refusals_logged: set[tuple[str, int]] = set()

    def _begin_in_child(self) -> None:
        if self._producer is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._producer))  # destroying it would wait for lost threads
            _of_the_parent.append(self._producer)
            self._producer = None
        self._begin()

    def _run(self) -> None:
        while not self._is_done():
            try:
                self._deliver()
            except Exception:  # noqa: BLE001  a thread that died in silence would lose everything after it
                self._log.exception("publishing failed, beginning anew")
                self._broken = True
                self._take_back()
                self._pause()
        if self._producer is not None:
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            self._producer = None

    def _deliver(self) -> None:
        if self._producer is None:
            self._producer = self._new_producer()
        if self._paused:
            self._wait_for_broker()
        else:
            self._hand_over()
            self._serve()
            self._notice_absence()

    def _pause(self) -> None:
        self._paused = True
        self._next_probe_s = self._now_s() + self._probe_every_s
        self._turn(away=True)

    def _is_done(self) -> bool:
        with self._changed:
            if not self._closing:
                return False
            empty = not self._waiting and not self._in_flight
            return empty or self._now_s() >= self._close_by_s

    def _new_producer(self) -> Producer:
        logger = logging.Logger("librdkafka")
        logger.addHandler(_Remember(self))
        settings = {
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 1_000,
            "linger.ms": 20,
            "compression.type": "zstd",
            **self._settings,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "allow.auto.create.topics": False,  # a broker's own partition count would not be ours
            # Never given up by a timer, which would let a later message of the same key overtake: while the
            # broker is away the messages are taken back whole instead.
            "message.timeout.ms": 0,
            "queue.buffering.max.messages": 2 * WINDOW_MESSAGES,
            "queue.buffering.max.kbytes": 2 * WINDOW_BYTES // 1024,
            "error_cb": self._on_error,
            "log_level": 3,
        }
        try:
            return Producer(settings, logger=logger)
        except KafkaException as error:
            raise ValueError(f"Kafka client settings: {error.args[0].str()}") from error

    def _hand_over(self) -> None:
        while (message := self._next()) is not None:
            if not self._produce(message):
                return

    def _next(self) -> _Outgoing | None:
        with self._changed:
            full = self._in_flight_bytes >= self._window_bytes or len(self._in_flight) >= WINDOW_MESSAGES
            if full or self._given_back or not self._waiting:
                return None
            message = self._waiting.popleft()
            self._waiting_bytes -= message.size_bytes
            if not self._in_flight:
                self._since_s = self._now_s()
            self._in_flight[message.order] = message
            self._in_flight_bytes += message.size_bytes
            return message

    def _produce(self, message: _Outgoing) -> bool:
        assert self._producer is not None  # noqa: S101
        where = {} if message.partition is None else {"partition": message.partition}
        for _ in range(2):
            try:
                self._producer.produce(
                    message.topic,
                    message.value,
                    message.key,
                    headers=dict(message.headers),
                    on_delivery=lambda error, _message: self._on_delivery(message, error),
                    **where,
                )
            except BufferError:
                self._producer.poll(0)  # messages that ended still fill the queue until they are reported
            except KafkaException as error:
                self._on_delivery(message, error.args[0])
                return False
            except (TypeError, ValueError) as error:  # no message at all: sending it again would fail for ever
                self._refuse(message, str(error))
                return True
            else:
                return True
        self._on_delivery(message, None, given_back=True)
        return False

    def _serve(self) -> None:
        assert self._producer is not None  # noqa: S101
        with self._changed:
            if not self._in_flight and not self._waiting and not self._closing:
                self._changed.wait(IDLE_S)
            busy = bool(self._in_flight)
        self._producer.poll(POLL_S if busy else 0)
        self._queue_again()

    def _notice_absence(self) -> None:
        with self._changed:
            late = bool(self._in_flight) and self._now_s() - self._since_s >= self._away_after_s
        if late or self._broken:
            self._take_back()
            self._pause()

    def _take_back(self) -> None:
        if self._producer is not None:
            self._producer.purge(in_queue=True, in_flight=True, blocking=True)
            deadline_s = time.monotonic() + TAKE_BACK_TIMEOUT_S
            while self._in_flight and time.monotonic() < deadline_s:
                self._producer.poll(POLL_S)
        # A new client, hence a new producer id: a broker may have stored what was just purged, and must not take
        # the next messages under the same id and sequence numbers for repeats of it.
        self._producer, self._broken = None, False
        with self._changed:
            self._given_back += self._in_flight.values()
            self._in_flight.clear()
            self._in_flight_bytes = 0
        self._queue_again()

    def _wait_for_broker(self) -> None:
        assert self._producer is not None  # noqa: S101
        with self._changed:
            until_s = min(self._next_probe_s, self._close_by_s) if self._closing else self._next_probe_s
            if (wait_s := until_s - self._now_s()) > 0:
                self._changed.wait(min(wait_s, IDLE_S))
                return
        self._next_probe_s = self._now_s() + self._probe_every_s
        self._producer.poll(0)
        try:
            self._producer.list_topics(timeout=PROBE_TIMEOUT_S)
        except KafkaException:
            return
        self._paused = False  # away is over at the first delivery only: an answer about topics delivers nothing

    def _turn(self, *, away: bool) -> None:
        if away == self._away:
            return
        self._away = away
        if away:
            self._log.warning("broker away, keeping the newest messages", reason=self._last_error or "no answer")
        else:
            self._log.info("broker back", waiting=len(self._waiting), dropped=self._dropped)

    def _on_delivery(self, message: _Outgoing, error: KafkaError | None, *, given_back: bool = False) -> None:
        with self._changed:
            if self._in_flight.pop(message.order, None) is None:
                return
            self._in_flight_bytes -= message.size_bytes
            self._since_s = self._now_s()
            if given_back:
                self._given_back.append(message)
                return
            if error is None:
                self._delivered += 1
            elif error.code() in _REFUSED_FOR_GOOD:
                self._refused += 1
            else:
                self._broken |= error.fatal() or error.code() == KafkaError._FATAL
                self._given_back.append(message)
        if error is None:
            self._turn(away=False)
        if error is not None and error.code() in _REFUSED_FOR_GOOD:
            self._say_refusal(message, error)

    def _refuse(self, message: _Outgoing, reason: str) -> None:
        with self._changed:
            del self._in_flight[message.order]
            self._in_flight_bytes -= message.size_bytes
            self._refused += 1
        self._log.error("message refused, dropped", topic=message.topic, reason=reason)

    def _say_refusal(self, message: _Outgoing, error: KafkaError) -> None:
        if (what := (message.topic, error.code())) not in self._refusals_logged:
            self._refusals_logged.add(what)
            self._log.error("message refused, dropped", topic=message.topic, reason=error.str())

    def _queue_again(self) -> None:
        with self._changed:
            if not self._given_back:
                return
            returned, self._given_back = self._given_back, []
            self._returned += len(returned)
            self._waiting = deque(sorted([*returned, *self._waiting], key=lambda message: message.order))
            self._waiting_bytes += sum(message.size_bytes for message in returned)
            self._keep_within_bound()

    def _keep_within_bound(self) -> None:
        """Called with the lock held, by any thread."""
        while self._waiting and self._waiting_bytes + self._in_flight_bytes > self._buffer_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        message = self._waiting.popleft()
        self._waiting_bytes -= message.size_bytes
        self._dropped += 1
        self._dropped_bytes += len(message.value)

    def _on_error(self, error: KafkaError) -> None:
        self._broker_errors += 1
        self._broken |= error.fatal()
        self.remember(error.str())

    def remember(self, what: str) -> None:
        """Keep the client's latest complaint for the next line; say one a minute at most."""
        self._last_error = what
        if not self._away and self._now_s() - self._error_logged_s >= ERROR_LOG_EVERY_S:
            self._error_logged_s = self._now_s()
            self._log.debug("broker error", reason=what)


class _Remember(logging.Handler):
    """Takes librdkafka's own lines, which it would write to stderr 15 times a second."""

    def __init__(self, publisher: Publisher) -> None:
        super().__init__()
        self._publisher = publisher

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the line."""
        self._publisher.remember(record.getMessage())
