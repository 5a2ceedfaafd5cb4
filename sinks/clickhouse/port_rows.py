"""The port counters of nic-counters as rows, one per tick in which a counter moved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sinks.clickhouse.columns import ArrayRows, Holes, ValueRows, coded, value_rows
from sinks.clickhouse.series_rows import bases, distinct_lists, runs
from streams.contract.counters import counter_spec
from streams.contract.inputs import NicCounters, Port


def port_run_rows(records: Sequence[NicCounters]) -> ArrayRows:
    """One row per counter and tick in which it moved, or per flush through which it held a level."""
    found = runs(
        [record.counters for record in records],
        [record.first_tick for record in records],
        [record.ticks for record in records],
    )
    port = bases(len(record.ports) for record in records)[found.record] + found.entity
    begins, names = distinct_lists(record.counter_names for record in records)
    name, counters = begins[found.record] + found.name, coded(names)
    specs = [counter_spec(counter) for counter in counters.values]
    counter = counters.codes[name]
    devices = coded(port.device for record in records for port in record.ports)
    numbers = np.array([port.port for record in records for port in record.ports], np.uint16)
    return ArrayRows(
        table="port_runs",
        count=len(found.tick),
        columns={
            "cluster": coded(record.cluster for record in records).at(found.record),
            "node": coded(record.node for record in records).at(found.record),
            "device": devices.at(port),
            "port": numbers[port],
            "counter": counters.at(name),
            "unit": coded(spec.unit for spec in specs).at(counter),
            "factor": np.array([spec.multiplier for spec in specs], np.uint8)[counter],
            "tick": found.tick,
            "ticks": found.ticks,
            "value": Holes(values=found.value, missing=found.missing),
            "source": coded(record.source.value for record in records).at(found.record),
        },
    )


def port_rows(records: Sequence[NicCounters]) -> ValueRows:
    """Each port once, as the last of the records describes it."""
    last: dict[tuple[str, str, str, int], tuple[NicCounters, Port]] = {}
    for record in records:
        for port in record.ports:
            last[record.cluster, record.node, port.device, port.port] = (record, port)
    return value_rows(
        "ports",
        [
            {
                "cluster": record.cluster,
                "node": record.node,
                "device": port.device,
                "port": port.port,
                "netdev": port.netdev,
                "link_layer": port.link_layer,
                "rate_mbps": port.rate_mbps,
                "capacity_mbps": port.capacity_mbps,
                "capacity_source": port.capacity_source.value,
                "tick": record.first_tick,
            }
            for record, port in last.values()
        ],
    )
