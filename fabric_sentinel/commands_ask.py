"""The commands that answer and end: sql, incidents, record, replay, explain, settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from fabric_sentinel import wiring
from fabric_sentinel.settings import describe, reference, variable_of
from fabric_sentinel.shell import BAD_USAGE, FOUND_A_PROBLEM, Load, emit, fail, until_stopped


@click.command()
@click.argument("query")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row")
@click.pass_obj
def sql(settings: Load, query: str, as_json: bool) -> None:
    """Ask ClickHouse, read-only: fabric-sentinel sql "SELECT * FROM incidents_current"."""
    from fabric_sentinel.table import show_rows
    from sinks.clickhouse.query import query as ask
    from sinks.clickhouse.store import StoreError

    try:
        answer = ask(wiring.store_dsn(settings()), query)
    except StoreError as error:
        fail(str(error))
    if as_json:
        for row in answer.rows:
            click.echo(json.dumps(dict(zip(answer.columns, row, strict=True)), default=str, ensure_ascii=False))
    else:
        show_rows(answer.columns, answer.rows, sys.stdout)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object an incident, as in the docs")
@click.pass_obj
def incidents(settings: Load, as_json: bool) -> None:
    """Show every incident that ClickHouse holds, oldest first; one that was merged shows as the one it became."""
    from fabric_sentinel.incident_json import to_json
    from fabric_sentinel.render import show
    from sinks.clickhouse.query import stored_incidents
    from sinks.clickhouse.store import StoreError

    try:
        found = stored_incidents(wiring.store_dsn(settings()))
    except StoreError as error:
        fail(str(error))
    for incident in found:
        if as_json:
            emit(to_json(incident))
        else:
            show(incident, sys.stdout)
            click.echo()


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--live", is_flag=True, help="Go on until Ctrl-C; without it, up to the topics' present end")
@click.pass_obj
def record(settings: Load, path: Path, live: bool) -> None:
    """Copy the input topics into a recording: a new folder of Avro containers that `replay` reads."""
    from streams.record import record as write
    from streams.recording import RecordingError

    chosen = settings()
    try:
        run = write(
            wiring.connection(chosen.kafka),
            path,
            cluster=chosen.cluster,
            version=wiring.code_version(),
            partitions=chosen.topics.partitions,
            settings=describe(chosen),
            registry=wiring.registry(chosen),
            stop=until_stopped().is_set if live else None,
        )
    except RecordingError as error:
        fail(str(error))
    except ValueError as error:
        fail(f"{error}; run `fabric-sentinel topics apply`")
    click.echo(f"{path}: {sum(run.records.values())} records of {len(run.records)} topics", err=True)


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object an incident, the last revision of each")
@click.pass_obj
def replay(settings: Load, path: Path, as_json: bool) -> None:
    """Run the detector over a recording: the same records give the same incidents, byte for byte."""
    from fabric_sentinel.incident_json import to_json
    from fabric_sentinel.progress import counting
    from fabric_sentinel.render import show
    from streams.recording import RecordingError
    from streams.replay import replay as run

    try:
        with counting("replaying", unit="records") as progress:
            result = run(path, wiring.core_settings(settings()), on_progress=progress)
    except RecordingError as error:
        fail(str(error), code=BAD_USAGE)
    if result.cold_start:
        click.echo("cold start: the recording holds no state, so verdicts begin after each job's warm-up", err=True)
    if result.dead_letters:
        click.echo(f"{len(result.dead_letters)} messages were no records: {result.dead_letters[0].reason}", err=True)
    found = result.incidents_by_onset()
    for incident in found:
        if as_json:
            emit(to_json(incident))
        else:
            show(incident, sys.stdout)
            click.echo()
    click.echo(f"{result.records} records, {len(found)} incidents", err=True)


@click.command()
@click.argument("kind")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a file")
@click.option("--redact", is_flag=True, help="Replace names and ids consistently, for a public report")
def explain(kind: str, files: tuple[Path, ...], as_json: bool, redact: bool) -> None:
    """Say what the agent makes of raw inputs: cgroup, maps, sysfs (a folder), ethtool.

    It runs the agent's own functions; attach its output to a bug report.
    """
    from producers.explain import EXPLAINERS
    from producers.explain import explain as look
    from producers.redact import Redactor

    if kind not in EXPLAINERS:
        raise click.BadParameter(f"{kind!r} is none of {', '.join(EXPLAINERS)}", param_hint="KIND")
    redactor = Redactor()
    unread = 0
    for file in files:
        explanation = look(kind, file)
        unread += not explanation.readable
        line = redactor.json({**explanation.as_json()}) if redact else explanation.as_json()
        if as_json:
            click.echo(json.dumps(line, ensure_ascii=False))
        else:
            click.echo(json.dumps(line, ensure_ascii=False, indent=2))
    if unread:
        fail(f"{unread} of {len(files)} inputs cannot be read", code=FOUND_A_PROBLEM)


@click.command("settings")
@click.option("--markdown", is_flag=True, help="As the table of docs/configuration.md")
@click.pass_obj
def show_settings(settings: Load, markdown: bool) -> None:
    """Print every setting as it stands, its variable and what it is; secrets are masked."""
    if markdown:
        from fabric_sentinel.table import settings_markdown

        click.echo(settings_markdown())
        return
    now = describe(settings())
    for key, _, default, what in reference():
        changed = "" if str(now[key]) == default else f"   (default {default})"
        click.echo(f"{key} = {now[key]}{changed}\n    {what}  [{variable_of(key)}]")


COMMANDS = (sql, incidents, record, replay, explain, show_settings)
