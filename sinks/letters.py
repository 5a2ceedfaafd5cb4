"""What a dead letter says of a message that is no record."""

from __future__ import annotations

from collections.abc import Sequence

from streams.contract.plumbing import DeadLetter

KEPT_BYTES = 900_000  # Below the broker's default limit of 1 MB, with room for the letter's other fields


def letter_of(
    *,
    component: str,
    reason: str,
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
    broker_time_ms: int | None,
) -> DeadLetter:
    """The whole message and the reason; a value near the broker's limit is cut, and the reason says so."""
    if value is not None and len(value) > KEPT_BYTES:
        reason = f"{reason} (the first {KEPT_BYTES} of {len(value)} bytes are kept)"
        value = value[:KEPT_BYTES]
    return DeadLetter(
        component=component,
        topic=topic,
        partition=partition,
        offset=offset,
        reason=reason,
        key=key,
        value=value,
        headers={name: content for name, content in headers if content is not None},
        broker_time_ms=broker_time_ms,
    )
