"""What every command shares: exit codes, one-line failures, logs, signals, JSON lines."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

import click
import msgspec
import structlog

from fabric_sentinel import log, wiring
from fabric_sentinel.settings import Settings, describe

DONE, FOUND_A_PROBLEM, BAD_USAGE = 0, 1, 2
Load = Callable[[], Settings]  # What click hands to a command: the settings, read when it asks

logger = structlog.get_logger()


def fail(message: str, *, code: int = FOUND_A_PROBLEM) -> NoReturn:
    """One line on stderr, and out."""
    click.echo(f"fabric-sentinel: {message}", err=True)
    sys.exit(code)


def until_stopped() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def start(settings: Settings, component: str) -> None:
    """Set up logs and say, once, with which settings the component starts."""
    log.configure(settings.log_format)
    logger.info("starting", component=component, version=wiring.code_version(), **describe(settings))


def emit(value: object) -> None:
    """One JSON line on stdout."""
    click.echo(msgspec.json.encode(value).decode())
