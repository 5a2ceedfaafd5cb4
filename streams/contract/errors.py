"""The errors whose type decides what happens next."""

from __future__ import annotations


class InvalidRecordError(Exception):
    """The bytes or fields cannot be a record: they go to dead-letters with this reason, and the flow goes on."""


class RetryableError(Exception):
    """Something outside is away for now (broker, store, registry): keep the work, back off, try again."""
