"""Fixtures that every test folder shares, and CI's rule that nothing may be skipped for want of a tool."""

from collections.abc import Generator

import pytest

from tests.paths import in_ci
from tests.services.fixtures import (  # noqa: F401 (fixtures are found by name)
    kafka,
    new_embedded_broker,
    new_kafka,
    new_prometheus,
    registry,
    service_logs,
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of the services that a failed test used; in CI, let only `docker` tests skip."""
    report = yield
    if report.skipped and in_ci() and not hasattr(report, "wasxfail") and not item.get_closest_marker("docker"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where only `docker` tests may be: {report.longrepr}"
    if report.failed:
        report.sections += [(f"log of {name}", tail) for name, tail in service_logs(item)]
    return report
