"""The packaged Avro schemas: one versioned file per topic, found by the id that travels with each message."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import fastavro.schema

from streams.contract.topics import ALL

PACKAGED_BIT = 1 << 30  # Set on every packaged id; a registry's own ids are small
_ID_MASK = PACKAGED_BIT - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schema:
    """One version of one topic's schema."""

    topic: str
    version: int
    text: str  # As the file has it
    parsed: dict[str, object]  # As fastavro wants it
    fingerprint: bytes  # First 8 bytes of SHA-256 of the canonical form

    @property
    def packaged_id(self) -> int:
        """The id under which this schema travels without a registry."""
        return PACKAGED_BIT | (int.from_bytes(self.fingerprint, "big") & _ID_MASK)


def schema_folder() -> Path:
    """Where the .avsc files are: inside an installed package, else at the top of the checkout."""
    packaged = Path(__file__).parent / "_avro"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "avro"


@cache
def all_schemas() -> tuple[Schema, ...]:
    """Every packaged version of every topic, oldest first."""
    found = [_load(path) for path in schema_folder().glob("*.avsc")]
    return tuple(sorted(found, key=lambda schema: (schema.topic, schema.version)))


@cache
def latest(topic: str) -> Schema:
    """The version that we write."""
    return next(schema for schema in reversed(all_schemas()) if schema.topic == topic)


@cache
def by_packaged_id() -> dict[int, Schema]:
    """Packaged schemas by id."""
    return {schema.packaged_id: schema for schema in all_schemas()}


def missing_topics() -> set[str]:
    """Topics without a schema file: empty in a sound installation."""
    return {topic.name for topic in ALL} - {schema.topic for schema in all_schemas()}


def _load(path: Path) -> Schema:
    topic, version = path.name.removesuffix(".avsc").rsplit(".v", 1)
    text = path.read_text(encoding="utf-8")
    raw = json.loads(text)
    canonical = fastavro.schema.to_parsing_canonical_form(raw)
    return Schema(
        topic=topic,
        version=int(version),
        text=text,
        parsed=fastavro.parse_schema(raw),
        fingerprint=hashlib.sha256(canonical.encode()).digest()[:8],
    )
