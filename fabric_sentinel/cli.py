"""The command line: each command reads the settings, builds its component, and runs it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import click
import msgspec
import structlog

from fabric_sentinel import log, wiring
from fabric_sentinel.settings import Settings, SettingsError, describe, load

DONE, FOUND_A_PROBLEM, BAD_USAGE = 0, 1, 2
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

logger = structlog.get_logger()
Command = TypeVar("Command", bound=Callable[..., object])


def main() -> NoReturn:
    """Run a command; a wrong setting ends with one line and exit code 2."""
    try:
        cli(prog_name="fabric-sentinel", standalone_mode=True)
    except SettingsError as error:
        fail(str(error), code=BAD_USAGE)
    sys.exit(DONE)


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


@click.group(context_settings=CONTEXT)
@click.version_option(package_name="fabric-sentinel")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file of settings [FABRIC_SENTINEL_CONFIG]")
@click.option("--kafka", "bootstrap", help="Brokers, host:port[,…]; overrides kafka.bootstrap")
@click.pass_context
def cli(context: click.Context, config: Path | None, bootstrap: str | None) -> None:
    """Name the pod that slowed your training jobs over the RDMA fabric, and what it cost.

    \b
    First minute:   fabric-sentinel demo
    On each node:   fabric-sentinel agent        (root, or the capabilities named in its help)
    In the cluster: fabric-sentinel pods, stream, sink clickhouse, sink prometheus
    Afterwards:     fabric-sentinel sql "SELECT * FROM incidents_current", record, replay

    Every setting comes from one TOML file or from FABRIC_SENTINEL_… variables: see `fabric-sentinel settings`.
    """
    context.obj = lambda: load(file=config, overrides={"kafka.bootstrap": bootstrap})


@cli.command("settings")
@click.pass_obj
def show_settings(settings: Callable[[], Settings]) -> None:
    """Print every setting as it stands, its variable and what it is; secrets are masked."""
    from fabric_sentinel.settings import reference, variable_of

    now = describe(settings())
    for key, _, default, what in reference():
        changed = "" if str(now[key]) == default else f"   (default {default})"
        click.echo(f"{key} = {now[key]}{changed}\n    {what}  [{variable_of(key)}]")
