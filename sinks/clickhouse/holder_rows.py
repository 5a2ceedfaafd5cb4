"""The holders of nic-counters as rows: what each pod, container or process held and moved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sinks.clickhouse.columns import ArrayRows, Coded, Holes, coded
from sinks.clickhouse.series_rows import bases, distinct_lists, runs
from streams.contract.inputs import Holder, NicCounters
from streams.contract.series import unpack_pairs


def holder_run_rows(records: Sequence[NicCounters]) -> ArrayRows:
    """Runs as for ports, and a run of NULL for each listed feature that was not read for a holder."""
    ticks = np.array([record.ticks for record in records], np.uint16)
    first_tick = np.array([record.first_tick for record in records], np.int64)
    features = [record.features for record in records]
    found = runs(features, first_tick.tolist(), ticks.tolist())
    holding_base = bases(len(record.holdings) // 4 for record in records)
    name_base, names = distinct_lists(record.feature_names for record in records)
    unread, unread_entity, unread_name = _unread(records)
    record: NDArray[np.int64] = np.concatenate((found.record, unread))
    holding = holding_base[record] + np.concatenate((found.entity, unread_entity))
    name = name_base[record] + np.concatenate((found.name, unread_name))
    return ArrayRows(
        table="holder_runs",
        count=len(record),
        columns={
            "cluster": coded(r.cluster for r in records).at(record),
            "node": coded(r.node for r in records).at(record),
            **{column: values.at(holding) for column, values in _holdings(records).items()},
            "feature": coded(names).at(name),
            "tick": np.concatenate((found.tick, first_tick[unread])),
            "ticks": np.concatenate((found.ticks, ticks[unread])),
            "value": Holes(
                values=np.concatenate((found.value, np.zeros(len(unread), np.int64))),
                missing=np.concatenate((found.missing, np.ones(len(unread), np.bool_))),
            ),
            "bytes_rung": coded(r.bytes_rung.value for r in records).at(record),
            "source": coded(r.source.value for r in records).at(record),
        },
    )


def holder_id(holder: Holder) -> str:
    """The best name that is known: pod uid, else container id, else pid:N, else cgroup:N."""
    return (
        holder.pod_uid or holder.container_id or (f"pid:{holder.pid}" if holder.pid else f"cgroup:{holder.cgroup_id}")
    )


def holder_kind(holder: Holder) -> str:
    """Which of these names it is."""
    if holder.pod_uid:
        return "pod"
    return "container" if holder.container_id else "process"


def _holdings(records: Sequence[NicCounters]) -> dict[str, Coded]:
    """The columns that say whose a holding is, over the holdings of all records in turn."""
    holders: list[Holder] = []
    devices: list[str] = []
    for record in records:
        holder, device = unpack_pairs(record.holdings)
        holders.extend(record.holders[index] for index in holder)
        devices.extend(record.devices[index] for index in device)
    return {
        "device": coded(devices),
        "holder": coded(holder_id(holder) for holder in holders),
        "holder_kind": coded(holder_kind(holder) for holder in holders),
        "container_id": coded(holder.container_id for holder in holders),
        "comm": coded(holder.comm for holder in holders),
    }


def _unread(records: Sequence[NicCounters]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(record, holding, feature) of each feature that a record lists and has no series for."""
    parts = [(np.zeros(0, np.int64),) * 3]
    for number, record in enumerate(records):
        holdings, names = len(record.holdings) // 4, len(record.feature_names)
        ids = record.features.moving_ids + record.features.steady_ids
        if len(ids) == 4 * holdings * names:
            continue
        seen = np.frombuffer(ids, "<u4")
        absent = np.ones((holdings, names), np.bool_)
        absent[seen >> 16, seen & 0xFFFF] = False
        holding, name = np.nonzero(absent)
        parts.append((np.full(len(holding), number, np.int64), holding, name))
    record_at, holding_at, name_at = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return record_at, holding_at, name_at
