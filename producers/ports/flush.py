"""What the port sampler hands over: some ticks of every counter of every port."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from producers.ports.capacity import CapacitySource


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Gap:
    """Something that is not seen: where, what, and why."""

    source: str
    what: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortInfo:
    """A port as it was at the end of the flush; None is unknown. `state` and `phys_state` are kernel names."""

    device: str
    port: int
    netdev: str | None
    link_layer: str | None
    state: str | None
    phys_state: str | None
    rate_mbps: int | None
    capacity_mbps: int | None
    capacity_source: CapacitySource | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A counter that went back: its port's index, its name, the tick's offset in the flush."""

    port: int
    name: str
    tick: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A delta that belongs to more ticks than its own: row, tick offset, and how many ticks it covers."""

    row: int
    tick: int
    ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PortsFlush:
    """Row i is counter `names[name[i]]` of port `ports[entity[i]]`; `values[i, t]` is tick `first_tick + t`.

    Counters are deltas in the kernel's own unit, gauges are readings; MISSING (-2^63) where nothing is known.
    After ticks without a reading the next delta stays whole at the tick at which it was read (sums are exact),
    and `spans` says how many ticks it covers: divide before you call it a rate. A span of more than a second
    is dropped, and is a gap. A series' first reading, and the reading after a reset, are MISSING too.
    """

    first_tick: int
    ports: tuple[PortInfo, ...]
    names: tuple[str, ...]
    entity: NDArray[np.int32]
    name: NDArray[np.int32]
    values: NDArray[np.int64]
    resets: tuple[Reset, ...]
    spans: tuple[Span, ...]
    gaps: tuple[Gap, ...]
