"""Avro arrays against packed integers, side by side: bytes, bytes under zstd, and time to encode and to decode."""

from __future__ import annotations

import io
import json
import os
import random
import time
from collections.abc import Callable
from typing import Any

import cramjam
import fastavro
import msgspec
import numpy as np

from bench._node_second import (
    COUNTERS,
    FLUSHES,
    JOBS,
    PODS,
    PORTS,
    TICKS,
    call_rows,
    counter_series,
    feature_series,
    nccl_record,
    nic_record,
)
from streams.contract.calls import Column, unpack_rows
from streams.contract.schemas import latest
from streams.contract.series import Series, unpack
from streams.contract.topics import NCCL_THROUGHPUT, NIC_COUNTERS
from streams.contract.wire import Decoder, Encoder

REPEATS = 300
SERIES_AS_ARRAYS = {
    "type": "record",
    "name": "Series",
    "fields": [
        {
            "name": "moving",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Moving",
                    "fields": [
                        {"name": "entity", "type": "long"},
                        {"name": "name", "type": "long"},
                        {"name": "values", "type": {"type": "array", "items": "long"}},
                    ],
                },
            },
        },
        {
            "name": "steady",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Steady",
                    "fields": [{"name": n, "type": "long"} for n in ("entity", "name", "value")],
                },
            },
        },
    ],
}
ROWS_AS_ARRAY = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "Row",
        "fields": [{"name": column.name.lower(), "type": "long"} for column in Column],
    },
}


def with_arrays(topic: str, replaced: dict[str, Any]) -> Any:
    """A topic's schema with some fields' types replaced; everything else stays."""
    schema = json.loads(latest(topic).text)
    defined: set[str] = set()
    for field in schema["fields"]:
        if field["name"] in replaced:
            new = replaced[field["name"]]
            name = new.get("name")
            field["type"] = name if name in defined else new
            defined.add(name)
            field.pop("default", None)
    return fastavro.parse_schema(schema)


def sparse(series: Series) -> dict[str, Any]:
    """A counter that moved is spelled out, one that stood still is named once: the same rule as in packed form."""
    moving, steady = [], []
    for entity, name, row in zip(series.entity.tolist(), series.name.tolist(), series.values.tolist(), strict=True):
        if len(set(row)) == 1:
            steady.append({"entity": entity, "name": name, "value": row[0]})
        else:
            moving.append({"entity": entity, "name": name, "values": row})
    return {"moving": moving, "steady": steady}


def dense(fields: dict[str, Any]) -> Series:
    """Sparse arrays as the matrix that the detector computes on."""
    moving, steady = fields["moving"], fields["steady"]
    values = np.empty((len(moving) + len(steady), TICKS), np.int64)
    if moving:
        values[: len(moving)] = [row["values"] for row in moving]
    values[len(moving) :] = np.array([row["value"] for row in steady], np.int64)[:, None]
    both = [*moving, *steady]
    return Series(
        entity=np.array([row["entity"] for row in both], np.int32),
        name=np.array([row["name"] for row in both], np.int32),
        values=values,
    )


def cost_us(work: Callable[[], object]) -> float:
    """CPU time of one call: the fastest tenth, because whatever else runs on the machine only ever adds."""
    times = []
    for _ in range(REPEATS):
        began = time.process_time_ns()
        work()
        times.append((time.process_time_ns() - began) / 1000)
    return sorted(times)[REPEATS // 10]


class Arrays:
    """Both records with Avro arrays."""

    def __init__(self) -> None:
        self._nic = with_arrays("nic-counters", {"counters": SERIES_AS_ARRAYS, "features": SERIES_AS_ARRAYS})
        self._nccl = with_arrays("nccl-throughput", {"rows": ROWS_AS_ARRAY})
        nic, nccl = nic_record("n", 0, random.Random(1)), nccl_record("n", 0)
        rng = random.Random(1)
        counters, features = counter_series(rng), feature_series(rng)
        self._nic_fields = msgspec.to_builtins(nic, builtin_types=(bytes,)) | {
            "counters": sparse(counters),
            "features": sparse(features),
        }
        rows = call_rows().tolist()
        names = [column.name.lower() for column in Column]
        self._nccl_fields = msgspec.to_builtins(nccl, builtin_types=(bytes,)) | {
            "rows": [dict(zip(names, row, strict=True)) for row in rows]
        }

    def encode(self) -> list[bytes]:
        return [self._write(self._nic, self._nic_fields), self._write(self._nccl, self._nccl_fields)]

    def decode(self, values: list[bytes]) -> object:
        nic: Any = fastavro.schemaless_reader(io.BytesIO(values[0][5:]), self._nic, None)
        nccl: Any = fastavro.schemaless_reader(io.BytesIO(values[1][5:]), self._nccl, None)
        rows = np.array([list(row.values()) for row in nccl["rows"]], np.int64)
        return dense(nic["counters"]), dense(nic["features"]), rows

    def _write(self, schema: Any, fields: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        out.write(b"\0\0\0\0\0")
        fastavro.schemaless_writer(out, schema, fields)
        return out.getvalue()


class Packed:
    """Both records as they are, validated as every reader does."""

    def __init__(self) -> None:
        self._records = [nic_record("n", 0, random.Random(1)), nccl_record("n", 0)]
        self._encoders = [Encoder(NIC_COUNTERS), Encoder(NCCL_THROUGHPUT)]
        self._decoders = [Decoder(NIC_COUNTERS), Decoder(NCCL_THROUGHPUT)]

    def encode(self) -> list[bytes]:
        return [encode(record) for encode, record in zip(self._encoders, self._records, strict=True)]

    def decode(self, values: list[bytes]) -> object:
        nic: Any = self._decoders[0](values[0])
        nccl: Any = self._decoders[1](values[1])
        return (
            unpack(nic.counters, ticks=nic.ticks, entities=PORTS, names=COUNTERS),
            unpack(nic.features, ticks=nic.ticks, entities=PODS, names=len(nic.feature_names)),
            unpack_rows(nccl.rows, communicators=len(nccl.communicators), ticks=nccl.ticks),
        )


def main() -> None:
    """Print one table for a node-second."""
    print(f"{PORTS} ports x {COUNTERS} counters x 10 Hz, {PODS} pods, {JOBS} jobs; one node-second = {FLUSHES} flushes")
    print(
        f"CPU time of this process; load average {os.getloadavg()[0]:.1f}; budget: decode 250 us, without the matrices"
    )
    print(f"{'shape':<22}{'bytes':>9}{'zstd':>9}{'encode us':>12}{'decode us':>12}")
    for name, shape in (("sparse Avro arrays", Arrays()), ("packed integers", Packed())):
        values = shape.encode()
        raw = FLUSHES * sum(map(len, values))
        zstd = FLUSHES * sum(len(bytes(cramjam.zstd.compress(value))) for value in values)
        encode_us = FLUSHES * cost_us(shape.encode)
        decode_us = FLUSHES * cost_us(lambda shape=shape, values=values: shape.decode(values))
        print(f"{name:<22}{raw:>9,}{zstd:>9,}{encode_us:>12.0f}{decode_us:>12.0f}")


if __name__ == "__main__":
    main()
