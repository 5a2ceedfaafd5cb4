"""Who gets how much of a port: weighted max-min fairness, the steady state that congestion control aims at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one flow would send, and its weight: queue pairs, since each is limited on its own."""

    bytes_per_s: float
    queue_pairs: int


def share(capacity_bytes_per_s: float, demands: Mapping[str, Demand]) -> dict[str, float]:
    """Bytes a second of each flow: nobody gets more than asked, the rest is split by queue pairs."""
    given: dict[str, float] = {}
    open_flows = {name: demand for name, demand in demands.items() if demand.bytes_per_s > 0 and demand.queue_pairs > 0}
    left = capacity_bytes_per_s
    while open_flows:
        per_pair = left / sum(demand.queue_pairs for demand in open_flows.values())
        content = {n: d for n, d in open_flows.items() if d.bytes_per_s <= per_pair * d.queue_pairs}
        if not content:
            return given | {name: per_pair * demand.queue_pairs for name, demand in open_flows.items()}
        for name, demand in content.items():
            given[name] = demand.bytes_per_s
            left -= demand.bytes_per_s
            del open_flows[name]
    return given
