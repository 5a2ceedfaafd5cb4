"""Begins the core's steps, cold; a later step of this project restores them from snapshots here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from streams.contract.findings import Episode, JobState
from streams.core.core import Correlate, Join, Judge
from streams.core.settings import CoreSettings
from streams.flow import Makers, Step


class CorrelateStep:
    """Correlate, which drops nothing and so counts nothing, in the shape of a step."""

    counts: Mapping[str, int] = {}

    def __init__(self, correlate: Correlate) -> None:
        self._correlate = correlate

    def apply(self, record: msgspec.Struct, /) -> Sequence[msgspec.Struct]:
        """The incidents that follow from one more episode or job state."""
        return self._correlate.apply(cast("Episode | JobState", record))


def core_makers(core: CoreSettings, *, input_partitions: int) -> Makers:
    """Steps with these settings; the topic that a step reads decides the type of what it is given."""
    return Makers(
        join=lambda partition: cast(Step, Join(core.join, partition)),
        judge=lambda _partition: cast(Step, Judge(core.judge, input_partitions)),
        correlate=lambda: CorrelateStep(Correlate(core.correlate)),
    )
