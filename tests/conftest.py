"""Fixtures that every test folder shares."""

from collections.abc import Iterator

import pytest

from tests.services.fixtures import (  # noqa: F401 (fixtures are found by name)
    kafka,
    new_embedded_broker,
    new_kafka,
    new_prometheus,
    registry,
    service_logs,
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show the logs of the services that a failed test used."""
    report = yield
    if report.failed:
        report.sections += [(f"log of {name}", tail) for name, tail in service_logs(item)]
    return report
