"""The roster inside a slice: MessagePack, written once per change and read through a cache.

Why MessagePack and not a second Avro record: docs/adr/0002-packed-series.md.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from streams.contract.errors import InvalidRecordError
from streams.contract.slices import SliceRoster

# One per job and node that a worker judges, about 10 kB each once read. A miss costs what the ADR says, once per slice.
CACHED_ROSTERS = 4096
MAX_ROSTER_BYTES = 1 << 20  # Four thousand communicators and their pods; a Kafka message is no larger

_NOBODY = SliceRoster()
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SliceRoster)


def roster_bytes(roster: SliceRoster) -> bytes:
    """What a slice carries; equal rosters give equal bytes."""
    return _encoder.encode(roster)


@lru_cache(maxsize=CACHED_ROSTERS)
def roster_of(raw: bytes) -> SliceRoster:
    """The roster that a slice carries; raises InvalidRecordError where the bytes are none."""
    if not raw:
        return _NOBODY
    if len(raw) > MAX_ROSTER_BYTES:
        raise InvalidRecordError(f"a roster of {len(raw)} bytes, more than {MAX_ROSTER_BYTES}")
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRecordError(f"not a SliceRoster: {error}") from error
