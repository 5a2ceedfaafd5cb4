"""By which mechanism a suspect can have done it, and whether its port looked like that."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streams.contract import features
from streams.contract.findings import Kind
from streams.contract.inputs import CapacitySource
from streams.contract.slices import SlicePort
from streams.core.history import Window
from streams.core.suspects import BYTES, MR_CHURN, QP_CHURN, Bracket, Candidate

FULL = 0.85  # Of a port's capacity
PLATEAU = 0.5  # Tenth over ninetieth percentile of the port's bytes per second: it ran at a ceiling
ACTIVE = 4  # The kernel's code of a port that is up (IB_PORT_ACTIVE)
BYTES_PER_MBPS_TICK = 1_000_000 // 10 // 8  # Bytes in one tick at 1 Mb/s

_KIND_OF = {
    features.TX_BYTES: Kind.BANDWIDTH_SATURATION,
    features.RX_BYTES: Kind.BANDWIDTH_SATURATION,
    features.QP_LIVE: Kind.QP_ICM_EXHAUSTION,
    QP_CHURN: Kind.QP_ICM_EXHAUSTION,
    MR_CHURN: Kind.MR_MTT_THRASH,
    features.MR_LIVE_BYTES: Kind.MR_MTT_THRASH,
}


def kind_of(candidate: Candidate) -> Kind:
    """The mechanism behind a feature."""
    return _KIND_OF[candidate.feature]


def port_was_full(window: Window, candidate: Candidate, bracket: Bracket) -> bool:
    """True where the port ran at its capacity, or at a ceiling below it, while the suspect was active.

    A stated rate can be far above what a port really carries (Soft-RoCE states 10 Gb/s whatever lies below; a queue
    discipline or a switch can limit it), so a plateau counts as much as a percentage. So does a port whose bytes
    nobody can see: there the dose and both edges must do.
    """
    rows = _port_rows(window, candidate, bracket)
    return not rows or port_at_capacity(window, candidate, bracket) or any(_plateau(values) for _, values in rows)


def port_at_capacity(window: Window, candidate: Candidate, bracket: Bracket) -> bool:
    """True where the port's bytes came near its stated or observed capacity while the suspect was active."""
    return any(
        port.capacity_mbps is not None
        and port.capacity_source is not CapacitySource.UNKNOWN
        and float(values.mean()) >= FULL * port.capacity_mbps * BYTES_PER_MBPS_TICK
        for port, values in _port_rows(window, candidate, bracket)
    )


def _port_rows(window: Window, candidate: Candidate, bracket: Bracket) -> list[tuple[SlicePort, NDArray[np.float64]]]:
    name = features.PORT_TX_BYTES if candidate.feature == features.TX_BYTES else features.PORT_RX_BYTES
    start = max(candidate.before.rise_tick or bracket.onset_tick, bracket.onset_tick)
    end = (bracket.recovered_tick if bracket.recovered_tick is not None else bracket.now_tick) - 1
    part = window.seen(start, end)
    found = []
    for (key, port_name), row in window.ports.items():
        values = row[part][~np.isnan(row[part])]
        if key[0] == candidate.who.device and port_name == name and len(values):
            found.append((window.port_of[key], values))
    return found


def _plateau(values: NDArray[np.float64]) -> bool:
    seconds = np.convolve(values, np.ones(10) / 10, "valid") if len(values) >= 10 else values
    low, high = np.percentile(seconds, (10, 90))
    return bool(high > 0 and low >= PLATEAU * high)


def link_event(window: Window, *, tick_from: int, tick_to: int) -> tuple[Kind, str, int, int | None] | None:
    """A used port that went down or was not up: kind, device/port, tick, and the tick at which it was up again."""
    part = window.seen(tick_from, tick_to)
    for (device, number), port in sorted(window.port_of.items()):
        if not port.used:
            continue
        downs = window.ports.get(((device, number), features.PORT_LINK_DOWNED))
        states = window.ports.get(((device, number), features.PORT_STATE))
        first = max(tick_from, window.first_tick)
        if states is not None:
            bad = np.flatnonzero(~np.isnan(states[part]) & (states[part] != ACTIVE))
            if len(bad):
                up = states[part][bad[-1] + 1 :]
                again = first + int(bad[-1]) + 1 if len(up) else None
                return Kind.LINK_FLAP, f"{device}/{number}", first + int(bad[0]), again
        if downs is not None:
            moved = np.flatnonzero(np.nan_to_num(downs[part]) > 0)
            if len(moved):
                tick = first + int(moved[0])
                return Kind.LINK_FLAP, f"{device}/{number}", tick, None
    return None


def is_bytes(candidate: Candidate) -> bool:
    """True for a dose of bytes."""
    return candidate.feature in BYTES
