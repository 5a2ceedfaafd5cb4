"""Marks and fixtures that every test folder shares."""

import pytest

MARKS = {
    "kernel": "needs root and eBPF on the host kernel",
    "services": "starts real Kafka, a schema registry or Prometheus",
    "vm": "boots a QEMU guest",
    "docker": "needs a Docker engine (the one skip that CI may have)",
}


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
