"""Begins the core's three steps, cold; the next step of this project restores them from snapshots here."""

from __future__ import annotations

from streams.core.core import Correlate, Join, Judge
from streams.core.settings import CoreSettings
from streams.flow import Makers


def core_makers(core: CoreSettings, *, input_partitions: int) -> Makers:
    """Steps with these settings."""
    return Makers(
        join=lambda partition: Join(core.join, partition),
        judge=lambda _partition: Judge(core.judge, input_partitions),
        correlate=lambda: Correlate(core.correlate),
    )
