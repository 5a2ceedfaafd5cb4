"""The rows of a flush as columns, and what is remembered of each row from one tick to the next."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from producers.ports.delta import ABSENT, Widths, widths_of
from producers.ports.discover import PortPlace
from producers.ports.readers import Series
from streams.contract.counters import counter_spec

NEVER = -(2**62)

RowKey = tuple[str, str]
"""A row's port ("device/port") and counter name: what it is called whichever number it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What each row is; `names` is sorted, `name[i]` indexes it and `port[i]` the list of ports."""

    keys: tuple[RowKey, ...]
    names: tuple[str, ...]
    name: NDArray[np.int32]
    port: NDArray[np.int32]
    widths: Widths
    multipliers: tuple[int, ...]


def layout_of(places: Sequence[PortPlace], series: Sequence[Series]) -> Layout:
    """The layout of `series`, which belong to `places`."""
    specs = [counter_spec(one.name) for one in series]
    names = tuple(sorted({one.name for one in series}))
    index = {name: place for place, name in enumerate(names)}
    return Layout(
        keys=tuple((places[one.port].key, one.name) for one in series),
        names=names,
        name=np.array([index[one.name] for one in series], dtype=np.int32),
        port=np.array([one.port for one in series], dtype=np.int32),
        widths=widths_of(specs),
        multipliers=tuple(spec.multiplier for spec in specs),
    )


@dataclass(slots=True, kw_only=True)
class Memory:
    """Per row: the last reading and its tick, and what has to be told at the next flush."""

    last: NDArray[np.uint64]
    seen_tick: NDArray[np.int64]
    renewed: NDArray[np.bool_]
    saturated: NDArray[np.bool_]
    dropped: NDArray[np.bool_]

    def readings(self, layout: Layout) -> dict[RowKey, tuple[int, int]]:
        """Last reading and its tick, by row key."""
        return dict(zip(layout.keys, zip(self.last.tolist(), self.seen_tick.tolist(), strict=True), strict=True))


def memory_of(layout: Layout, readings: Mapping[RowKey, tuple[int, int]], renewed_ports: Set[str]) -> Memory:
    """Carry `readings` over to the rows of `layout`; RDMA counters of ports made anew have been reset.

    Their netdevs may be the same as before: what those count is judged by its value.
    """
    count = len(layout.keys)
    memory = Memory(
        last=np.full(count, ABSENT, dtype=np.uint64),
        seen_tick=np.full(count, NEVER, dtype=np.int64),
        renewed=np.zeros(count, dtype=np.bool_),
        saturated=np.zeros(count, dtype=np.bool_),
        dropped=np.zeros(count, dtype=np.bool_),
    )
    for row, key in enumerate(layout.keys):
        if key[0] in renewed_ports and key[1].startswith(("ib/", "hw/")):
            memory.renewed[row] = not layout.widths.gauge[row]
        elif key in readings:
            memory.last[row], memory.seen_tick[row] = readings[key]
    return memory
