"""One flush of a node as its two records: pure, the same for a real kernel and a simulated one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from producers.ports.flush import PortInfo, PortsFlush
from streams.contract import series
from streams.contract.calls import COLUMNS, pack_rows
from streams.contract.features import HOLDER_FEATURES
from streams.contract.header import About, Clock, Gap, Rung, Source
from streams.contract.inputs import (
    CapacitySource,
    CommEvent,
    Communicator,
    CounterReset,
    Holder,
    NcclThroughput,
    NicCounters,
    Port,
    Process,
)

# A node's gaps travel with every flush; a driver that fails in a thousand ways must not fill the message.
MAX_GAPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """Which ticks of which life of which node: what the two records of a flush have in common."""

    cluster: str
    node: str
    agent_epoch: str
    seq: int
    first_tick: int
    ticks: int
    source: Source
    clock: Clock | None = None
    about: About | None = None

    @property
    def last_tick(self) -> int:
        """The newest tick of the flush."""
        return self.first_tick + self.ticks - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holding:
    """What one holder did on one device: `values[feature]` has one number per tick, MISSING where not read."""

    holder: Holder
    device: str
    values: Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NcclFlush:
    """NCCL calls of a flush; `rows` is an [n, COLUMNS] matrix whose communicators index `communicators`."""

    processes: Sequence[Process] = ()
    communicators: Sequence[Communicator] = ()
    rows: NDArray[np.int64]
    events: Sequence[CommEvent] = ()


def no_calls() -> NcclFlush:
    """A flush in which nobody called NCCL, or nobody looked."""
    return NcclFlush(rows=np.zeros((0, COLUMNS), np.int64))


def nic_counters(
    flush: Flush,
    *,
    ports: PortsFlush | None,
    holdings: Sequence[Holding],
    bytes_rung: Rung = Rung.UNKNOWN,
    lost_events: int = 0,
    gaps: Sequence[Gap] = (),
) -> NicCounters:
    """The record of ports and holders; without ports their tables are empty, and a gap should say why."""
    found = [] if ports is None else [Gap(source=gap.source, what=gap.what, reason=gap.reason) for gap in ports.gaps]
    owners = {holder: place for place, holder in enumerate(dict.fromkeys(holding.holder for holding in holdings))}
    devices = {name: place for place, name in enumerate(sorted({holding.device for holding in holdings}))}
    return NicCounters(
        cluster=flush.cluster,
        node=flush.node,
        agent_epoch=flush.agent_epoch,
        seq=flush.seq,
        first_tick=flush.first_tick,
        ticks=flush.ticks,
        complete_through_tick=flush.last_tick,
        source=flush.source,
        clock=flush.clock,
        about=flush.about,
        ports=[] if ports is None else [_port(info) for info in ports.ports],
        counter_names=[] if ports is None else list(ports.names),
        counters=series.PackedSeries() if ports is None else _counters(ports, flush),
        resets=[] if ports is None else _resets(ports, flush),
        holders=list(owners),
        devices=list(devices),
        holdings=series.pack_pairs(
            [owners[holding.holder] for holding in holdings], [devices[holding.device] for holding in holdings]
        ),
        feature_names=_names_of(holdings),
        features=_features(holdings, flush),
        bytes_rung=bytes_rung,
        lost_events=lost_events,
        gaps=bounded_gaps([*gaps, *found]),
    )


def nccl_throughput(
    flush: Flush, *, calls: NcclFlush, lost_events: int = 0, gaps: Sequence[Gap] = ()
) -> NcclThroughput:
    """The record of NCCL calls, empty where nobody called."""
    return NcclThroughput(
        cluster=flush.cluster,
        node=flush.node,
        agent_epoch=flush.agent_epoch,
        seq=flush.seq,
        first_tick=flush.first_tick,
        ticks=flush.ticks,
        complete_through_tick=flush.last_tick,
        source=flush.source,
        clock=flush.clock,
        processes=list(calls.processes),
        communicators=list(calls.communicators),
        rows=pack_rows(calls.rows),
        events=list(calls.events),
        lost_events=lost_events,
        gaps=bounded_gaps(gaps),
    )


def bounded_gaps(gaps: Sequence[Gap]) -> list[Gap]:
    """At most MAX_GAPS of them, the last one saying how many more there are."""
    once = list(dict.fromkeys((gap.source, gap.what, gap.reason) for gap in gaps))
    kept = [Gap(source=source, what=what, reason=reason) for source, what, reason in once]
    if len(kept) <= MAX_GAPS:
        return kept
    more = len(kept) - MAX_GAPS + 1
    return [*kept[: MAX_GAPS - 1], Gap(source="agent", what=f"{more} more gaps", reason="too many for one record")]


def _port(info: PortInfo) -> Port:
    return Port(
        device=info.device,
        port=info.port,
        netdev=info.netdev,
        link_layer=info.link_layer,
        rate_mbps=info.rate_mbps,
        capacity_mbps=info.capacity_mbps,
        capacity_source=CapacitySource(info.capacity_source or "unknown"),
    )


def _counters(ports: PortsFlush, flush: Flush) -> series.PackedSeries:
    values = _aligned(ports.values, ports.first_tick, flush)
    return series.pack(series.Series(entity=ports.entity, name=ports.name, values=values))


def _aligned(values: NDArray[np.int64], first_tick: int, flush: Flush) -> NDArray[np.int64]:
    """The columns of the flush's own ticks; a tick that was not sampled is MISSING, never shifted."""
    shift = first_tick - flush.first_tick
    if shift == 0 and values.shape[1] == flush.ticks:
        return values
    aligned = np.full((values.shape[0], flush.ticks), series.MISSING, np.int64)
    begin, end = max(shift, 0), min(shift + values.shape[1], flush.ticks)
    if end > begin:
        aligned[:, begin:end] = values[:, begin - shift : end - shift]
    return aligned


def _resets(ports: PortsFlush, flush: Flush) -> list[CounterReset]:
    shift = ports.first_tick - flush.first_tick
    index = {name: place for place, name in enumerate(ports.names)}
    return [
        CounterReset(port=reset.port, counter=index[reset.name], tick_offset=reset.tick + shift)
        for reset in ports.resets
        if reset.name in index and 0 <= reset.tick + shift < flush.ticks
    ]


def _names_of(holdings: Sequence[Holding]) -> list[str]:
    used = {name for holding in holdings for name in holding.values}
    return [name for name in HOLDER_FEATURES if name in used]


def _features(holdings: Sequence[Holding], flush: Flush) -> series.PackedSeries:
    index = {name: place for place, name in enumerate(_names_of(holdings))}
    found = [
        (place, index[name], values)
        for place, holding in enumerate(holdings)
        for name, values in holding.values.items()
    ]
    if not found:
        return series.PackedSeries()
    return series.pack(
        series.Series(
            entity=np.array([place for place, _, _ in found], np.int32),
            name=np.array([name for _, name, _ in found], np.int32),
            values=np.stack([values for _, _, values in found]).reshape(len(found), flush.ticks),
        )
    )
