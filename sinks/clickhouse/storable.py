"""Refuses records whose numbers no table can hold as a time."""

from __future__ import annotations

import msgspec

from streams.contract.errors import InvalidRecordError
from streams.contract.findings import Episode, Incident
from streams.contract.plumbing import DeadLetter, PipelineHealth

# DateTime64 clamps and Python's datetime raises beyond; one such row would break every reader's SELECT *.
MAX_MS = 10**13  # The year 2286, as the contract's bound for ticks


def check_storable(record: msgspec.Struct) -> None:
    """Raise InvalidRecordError where a time lies outside 1970 to 2286 and the contract lets it pass."""
    for name, value_ms in _times_ms(record):
        if value_ms is not None and not 0 <= value_ms <= MAX_MS:
            raise InvalidRecordError(f"{name} lies outside the years 1970 to 2286")


def _times_ms(record: msgspec.Struct) -> list[tuple[str, int | None]]:
    if isinstance(record, PipelineHealth):
        return [("us", record.us // 1000)]
    if isinstance(record, DeadLetter):
        return [("broker_time_ms", record.broker_time_ms)]
    parts: list[object] = []
    if isinstance(record, Incident):
        parts = [*record.victims, *record.causes]
    elif isinstance(record, Episode):
        parts = [*record.causes]
    names = ("onset_tick", "recovered_tick")
    ticks = [(name, getattr(part, name)) for part in parts for name in names]
    return [(name, None if tick is None else tick * 100) for name, tick in ticks]
