"""The command line's top: which settings are meant, and what is told when they are wrong."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import NoReturn

import click

from fabric_sentinel import commands_ask, commands_run, commands_topics
from fabric_sentinel.settings import SettingsError, load
from fabric_sentinel.shell import BAD_USAGE, DONE, FOUND_A_PROBLEM, fail
from streams.contract.errors import RetryableError

# What a person mends without a traceback: a port or a path that cannot be used.
TOLD_IN_A_LINE = {
    errno.EADDRINUSE,
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENOENT,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EROFS,
}
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def main() -> NoReturn:
    """Run a command; a wrong setting ends with one line and exit code 2."""
    try:
        cli(prog_name="fabric-sentinel")
    except SettingsError as error:
        fail(str(error), code=BAD_USAGE)
    except RetryableError as error:
        advice = "set --kafka to where they are" if "broker" in str(error) else "see `fabric-sentinel settings`"
        fail(f"{error}; try again, or {advice}", code=FOUND_A_PROBLEM)
    except OSError as error:
        if error.errno not in TOLD_IN_A_LINE:
            raise
        if error.errno == errno.EADDRINUSE:
            fail("a port is in use already; choose another, or 0 for none: see `fabric-sentinel settings`")
        fail(f"{error.strerror}: {error.filename}", code=FOUND_A_PROBLEM)
    sys.exit(DONE)


@click.group(context_settings=CONTEXT)
@click.version_option(package_name="fabric-sentinel")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file of settings [FABRIC_SENTINEL_CONFIG]")
@click.option("--kafka", "bootstrap", help="Brokers, host:port[,…]; overrides kafka.bootstrap")
@click.pass_context
def cli(context: click.Context, config: Path | None, bootstrap: str | None) -> None:
    """Name the pod that slowed your training jobs over the RDMA fabric, and what it cost.

    \b
    First minute:    fabric-sentinel demo
    Set up:          fabric-sentinel topics apply
    On each node:    fabric-sentinel agent
    In the cluster:  fabric-sentinel pods | stream | sink clickhouse | sink prometheus
    Afterwards:      fabric-sentinel sql "SELECT * FROM incidents_current", record, replay

    Every setting comes from one TOML file or from FABRIC_SENTINEL_… variables: see `fabric-sentinel settings`.
    Results go to stdout, progress and logs to stderr. Exit codes: 0 done, 1 a problem was found, 2 bad usage or
    settings.
    """
    context.obj = lambda: load(file=config, overrides={"kafka.bootstrap": bootstrap})


for _command in (*commands_run.COMMANDS, *commands_ask.COMMANDS, *commands_topics.COMMANDS):
    cli.add_command(_command)
