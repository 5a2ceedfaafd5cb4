"""Flush records as rows: what was looked at, how long, what could not be seen, and which counters were read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sinks.clickhouse.columns import ArrayRows, ValueRows, coded, value_rows
from sinks.clickhouse.gap_columns import gap_columns
from streams.contract.inputs import NcclThroughput, NicCounters

LIFETIME_READ_SETS = 2_000  # Sets that one process remembers; a cluster of equal nodes has a few


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSet:
    """Which counters of which ports a record read, moved or not."""

    number: int  # From the content alone; 0 for the empty set
    members: Sequence[tuple[str, int, str]]  # device, port, counter


class ReadSets:
    """Finds a record's read set, without spelling it out again each time."""

    def __init__(self) -> None:
        self._known: dict[bytes, ReadSet] = {}

    def of(self, record: NicCounters) -> ReadSet:
        """The same number for the same counters, in whatever order the record names them."""
        ids = np.sort(np.frombuffer(record.counters.moving_ids + record.counters.steady_ids, "<u4"))
        ports = "\0".join(f"{port.device}\1{port.port}" for port in record.ports)
        key = b"\2".join((ids.tobytes(), ports.encode(), "\0".join(record.counter_names).encode()))
        if (known := self._known.get(key)) is not None:
            return known
        if len(self._known) >= LIFETIME_READ_SETS:
            self._known.clear()
        return self._known.setdefault(key, _read_set(record, ids.tolist()))


def flush_rows(
    topic: str,
    records: Sequence[NicCounters | NcclThroughput],
    offsets: Sequence[int],
    partition: int,
    sets: Sequence[ReadSet],
) -> ValueRows:
    """One row per record; `sets` are their read sets, empty where the records read no port counters."""
    return value_rows(
        "flushes",
        [
            {
                "cluster": record.cluster,
                "node": record.node,
                "topic": topic,
                "agent_epoch": record.agent_epoch,
                "seq": record.seq,
                "first_tick": record.first_tick,
                "ticks": record.ticks,
                "complete_through_tick": record.complete_through_tick,
                "source": record.source.value,
                "read_set": sets[number].number if sets else 0,
                **_holder_columns(record),
                "lost_events": record.lost_events,
                **gap_columns(record.gaps),
                "log_partition": partition,
                "log_offset": offset,
            }
            for number, (record, offset) in enumerate(zip(records, offsets, strict=True))
        ],
    )


def read_set_rows(sets: Iterable[ReadSet]) -> ArrayRows:
    """The members of each set."""
    rows = [(read.number, *member) for read in sets for member in read.members]
    return ArrayRows(
        table="read_sets",
        count=len(rows),
        columns={
            "read_set": np.array([row[0] for row in rows], np.uint64),
            "device": coded(row[1] for row in rows),
            "port": np.array([row[2] for row in rows], np.uint16),
            "counter": coded(row[3] for row in rows),
        },
    )


def _holder_columns(record: NicCounters | NcclThroughput) -> dict[str, object]:
    if isinstance(record, NcclThroughput):
        return {"holder_features": [], "holdings": 0, "bytes_rung": "unknown", "resets": 0}
    return {
        "holder_features": record.feature_names,
        "holdings": len(record.holdings) // 4,
        "bytes_rung": record.bytes_rung.value,
        "resets": len(record.resets),
    }


def _read_set(record: NicCounters, ids: Sequence[int]) -> ReadSet:
    members = sorted(
        (record.ports[id_ >> 16].device, record.ports[id_ >> 16].port, record.counter_names[id_ & 0xFFFF])
        for id_ in ids
    )
    digest = hashlib.blake2b(repr(members).encode(), digest_size=8).digest()
    return ReadSet(number=int.from_bytes(digest, "big") if members else 0, members=members)
