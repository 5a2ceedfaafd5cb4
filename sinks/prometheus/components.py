"""The pipeline's own parts as samples: who reports, what each cannot see, and what it lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from sinks.prometheus.declared import (
    PIPELINE_GAPS,
    PIPELINE_LAG,
    PIPELINE_LAST_SEEN,
    PIPELINE_LOST,
    PIPELINE_STATUS,
    PIPELINE_UP,
    PROBES_ATTACHED,
    PROBES_WANTED,
    Sample,
)
from streams.contract.plumbing import HealthStatus, PipelineHealth

SILENT_US = 30 * 1_000_000  # Six reports of the default interval
FORGET_US = 600 * 1_000_000  # A component that was taken away is missed for ten minutes
SILENT = "silent"
LOSSES = (
    "lost_rdma",
    "lost_nccl",
    "late_ticks",
    "dropped",
    "refused",
    "unencodable",
    "messages_deleted_unread",
    "reports_dropped",
)
_PID = re.compile(r"[:/][0-9]+$")
_BAD_FIRST = (HealthStatus.DOWN, HealthStatus.DEGRADED, HealthStatus.UNKNOWN, HealthStatus.OK)
_US = 1_000_000

Labels = tuple[str, ...]


class Components:
    """The latest report of each life of each component.

    An instance is a node or a host: a process id in it would be a new series with every restart. Lives on one host are
    told together: up while one of them is, their numbers added, and one that fell silent beside a living one is past.
    """

    def __init__(self) -> None:
        self._reports: dict[tuple[str, str, str], PipelineHealth] = {}

    def apply(self, report: PipelineHealth) -> None:
        """Take a report; the last one in the log holds, whatever its clock says: it may have been set back."""
        self._reports[(report.cluster, report.component, report.instance)] = report

    def forget(self, now_us: int) -> None:
        """Let go of those that have been silent for long."""
        self._reports = {key: report for key, report in self._reports.items() if report.us >= now_us - FORGET_US}

    def samples(self, now_us: int) -> Iterator[Sample]:
        """The gauges and counters as they stand."""
        hosts: dict[Labels, list[PipelineHealth]] = {}
        for report in self._reports.values():
            if report.us >= now_us - FORGET_US:
                hosts.setdefault(_labels(report), []).append(report)
        for labels, reports in hosts.items():
            living = [report for report in reports if report.us >= now_us - SILENT_US]
            newest_us = max(report.us for report in reports)
            yield Sample(PIPELINE_LAST_SEEN, labels, newest_us / _US)
            status = _status(living)
            yield Sample(PIPELINE_UP, labels, 1 if living and status != HealthStatus.DOWN else 0)
            yield Sample(PIPELINE_STATUS, (*labels, status), 1)
            yield from _numbers(labels, living)


def _labels(report: PipelineHealth) -> Labels:
    return report.cluster, report.component, _PID.sub("", report.instance), str(report.source)


def _status(living: list[PipelineHealth]) -> str:
    """The worst that a living one says."""
    said = {report.status for report in living}
    return next((str(status) for status in _BAD_FIRST if status in said), SILENT)


def _numbers(labels: Labels, living: list[PipelineHealth]) -> Iterator[Sample]:
    gaps = Counter(gap.source for report in living for gap in report.gaps)
    yield from (Sample(PIPELINE_GAPS, (*labels, source), count) for source, count in gaps.items())
    for what in LOSSES:
        if counted := [report.counts[what] for report in living if what in report.counts]:
            yield Sample(PIPELINE_LOST, (*labels, what), sum(counted))
    if lags := [report.counts["lag"] for report in living if "lag" in report.counts]:
        yield Sample(PIPELINE_LAG, labels, sum(lags))
    if wanted := [report.probes_wanted for report in living if report.probes_wanted is not None]:
        yield Sample(PROBES_WANTED, labels, sum(wanted))
    if attached := [report.probes_attached for report in living if report.probes_attached is not None]:
        yield Sample(PROBES_ATTACHED, labels, sum(attached))
