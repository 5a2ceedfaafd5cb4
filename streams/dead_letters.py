"""Makes a dead letter of a message that could not be a record."""

from __future__ import annotations

from streams.contract.plumbing import DeadLetter
from streams.kafka_log import LogMessage

REASON_CHARACTERS = 500  # The bytes say the rest


def dead_letter(message: LogMessage, reason: str, *, component: str = "stream") -> DeadLetter:
    """The message, whole, with why it was refused."""
    return DeadLetter(
        component=component,
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        reason=reason[:REASON_CHARACTERS],
        key=message.key,
        value=message.value,
        headers=message.headers,
        broker_time_ms=message.broker_time_ms,
    )


def dead_letter_key(letter: DeadLetter) -> bytes:
    """One partition's dead letters stay in order."""
    return f"{letter.topic}/{letter.partition}".encode()
