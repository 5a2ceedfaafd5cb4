"""Gaps as the three columns that every table with gaps has."""

from __future__ import annotations

from collections.abc import Sequence

from streams.contract.header import Gap


def gap_columns(gaps: Sequence[Gap]) -> dict[str, object]:
    """The nested column `gaps`."""
    return {
        "gaps.source": [gap.source for gap in gaps],
        "gaps.what": [gap.what for gap in gaps],
        "gaps.reason": [gap.reason for gap in gaps],
    }
