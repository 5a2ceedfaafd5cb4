"""The commands about topics and their schemas."""

from __future__ import annotations

import click

from fabric_sentinel import wiring
from fabric_sentinel.shell import FOUND_A_PROBLEM, Load, fail, until_stopped


@click.group()
def topics() -> None:
    """Create the topics, or look into one."""


@topics.command("apply")
@click.pass_obj
def topics_apply(settings: Load) -> None:
    """Create the topics that are missing and say what differs; nothing that exists is altered."""
    from streams.topics_admin import Difference, apply

    chosen = settings()
    connection = wiring.connection(chosen.kafka)
    try:
        found = apply(connection, partitions=chosen.topics.partitions, replication=chosen.topics.replication)
    except ValueError as error:
        fail(f"the brokers refuse: {error}; see topics.replication and topics.partitions")
    for line in found:
        click.echo(str(line))
    differences = [line for line in found if isinstance(line, Difference)]
    if not found:
        click.echo("all topics are as they should be")
    if differences:
        fail(f"{len(differences)} differences; they need a person's decision", code=FOUND_A_PROBLEM)


@topics.command("cat")
@click.argument("topic")
@click.option("--limit", type=int, help="Stop after so many messages")
@click.pass_obj
def topics_cat(settings: Load, topic: str, limit: int | None) -> None:
    """Print a topic's records as JSON lines, packed numbers spelled out."""
    from streams.contract.topics import BY_NAME
    from streams.topics_admin import cat

    if topic not in BY_NAME:
        raise click.BadParameter(f"no such topic; there are {', '.join(BY_NAME)}", param_hint="TOPIC")
    chosen = settings()
    try:
        for line in cat(wiring.connection(chosen.kafka), topic, registry=wiring.registry(chosen), limit=limit):
            click.echo(line)
    except ValueError as error:
        fail(f"{error}; run `fabric-sentinel topics apply`")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Bind address")
@click.option("--port", default=8081, show_default=True, help="0: any free port")
def schemas(host: str, port: int) -> None:
    """Serve the packaged schemas read-only at /schemas/ids/{id}, so that any Confluent reader reads our topics."""
    from streams.contract.registry import serve

    with serve(port, host=host) as url:
        click.echo(f"packaged schemas at {url}", err=True)
        until_stopped().wait()


COMMANDS = (topics, schemas)
