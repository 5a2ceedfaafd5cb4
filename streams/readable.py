"""Records as plain JSON values for people: packed numbers spelled out beside the names they belong to."""

from __future__ import annotations

import msgspec

from streams.contract.calls import Column, Op, Timing, unpack_rows
from streams.contract.inputs import NcclThroughput, NicCounters
from streams.contract.rosters import roster_of
from streams.contract.series import MISSING, PackedSeries, unpack, unpack_pairs
from streams.contract.slices import JobSlice

Json = dict[str, object]
_OPS = {int(op): op.name.lower() for op in Op}
_TIMINGS = {int(timing): timing.name.lower() for timing in Timing}


def readable(record: msgspec.Struct) -> Json:
    """The record's fields; where it holds packed bytes, their numbers per entity and name instead.

    A series becomes `{name: [value per tick]}` inside the port, holding or suspect it belongs to; null is a tick
    that could not be read. Raises InvalidRecordError where packed bytes do not fit the record.
    """
    fields: Json = msgspec.to_builtins(record)
    if isinstance(record, NicCounters):
        _nic_counters(record, fields)
    elif isinstance(record, NcclThroughput):
        fields["rows"] = _rows(record.rows, len(record.communicators), record.ticks)
    elif isinstance(record, JobSlice):
        _job_slice(record, fields)
    return fields


def _nic_counters(record: NicCounters, fields: Json) -> None:
    for name in ("counters", "counter_names", "holdings", "features", "feature_names"):
        del fields[name]
    counters = _by_entity(record.counters, record.ticks, len(record.ports), record.counter_names)
    fields["ports"] = [
        {**msgspec.to_builtins(port), "counters": values} for port, values in zip(record.ports, counters, strict=True)
    ]
    holders, devices = unpack_pairs(record.holdings)
    features = _by_entity(record.features, record.ticks, len(holders), record.feature_names)
    fields["holdings"] = [
        {"holder": int(holder), "device": record.devices[int(device)], "features": values}
        for holder, device, values in zip(holders, devices, features, strict=True)
    ]


def _job_slice(record: JobSlice, fields: Json) -> None:
    roster = roster_of(record.roster)
    ports = [msgspec.to_builtins(port) for port in roster.ports]
    suspects = [msgspec.to_builtins(suspect) for suspect in roster.suspects]
    values = _by_entity(record.features, record.ticks, 2 * len(ports) + len(suspects), roster.feature_names)
    for place, port in enumerate(ports):
        port["features"], port["job_features"] = values[place], values[len(ports) + place]
    for suspect, features in zip(suspects, values[2 * len(ports) :], strict=True):
        suspect["features"] = features
    fields |= {field: msgspec.to_builtins(getattr(roster, field)) for field in roster.__struct_fields__}
    del fields["roster"], fields["features"], fields["feature_names"]
    fields |= {
        "ports": ports,
        "suspects": suspects,
        "rows": _rows(record.rows, len(roster.communicators), record.ticks),
    }


def _by_entity(packed: PackedSeries, ticks: int, entities: int, names: list[str]) -> list[dict[str, list[int | None]]]:
    series = unpack(packed, ticks=ticks, entities=entities, names=len(names))
    values: list[dict[str, list[int | None]]] = [{} for _ in range(entities)]
    for entity, name, row in zip(series.entity, series.name, series.values.tolist(), strict=True):
        values[int(entity)][names[int(name)]] = [None if value == MISSING else value for value in row]
    return values


def _rows(raw: bytes, communicators: int, ticks: int) -> list[Json]:
    rows = unpack_rows(raw, communicators=communicators, ticks=ticks)
    return [_row(row) for row in rows.tolist()]


def _row(row: list[int]) -> Json:
    named: Json = {column.name.lower(): row[column] for column in Column}
    op, timing = row[Column.OP], row[Column.TIMING]
    named["op"] = _OPS.get(op, op)
    named["timing"] = _TIMINGS.get(timing, timing)
    return named
