"""The commands that run until they are stopped: demo, agent, pods, simulate, stream, sink."""

from __future__ import annotations

from pathlib import Path

import click

from fabric_sentinel import wiring
from fabric_sentinel.shell import BAD_USAGE, Load, fail, start, until_stopped


@click.command()
@click.option("--headless", is_flag=True, help="No progress and no colours: for scripts")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the incidents as JSON, one a line, read back from ClickHouse"
)
@click.option("--seed", default=1, show_default=True, help="Of the simulated noise")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Folder to keep [./.fabric-sentinel]")
@click.option(
    "--record", "recording", type=click.Path(path_type=Path), help="Also write a recording into this new folder"
)
@click.pass_obj
def demo(settings: Load, headless: bool, as_json: bool, seed: int, data: Path | None, recording: Path | None) -> None:
    """Run the whole line on this machine: within three minutes a culprit is named.

    An embedded Kafka broker, three simulated nodes, the stream app, ClickHouse's engine and the Prometheus exporter
    start as processes of this one, and all of them end with it.
    """
    from fabric_sentinel.demo import DemoError, DemoSettings, run

    chosen = DemoSettings(
        data=(data or Path.cwd() / ".fabric-sentinel").absolute(),
        seed=seed,
        quiet=headless,
        as_json=as_json,
        recording=recording,
    )
    try:
        run(chosen, settings())
    except DemoError as error:
        fail(str(error))


@click.command()
@click.pass_obj
def stream(settings: Load) -> None:
    """Join, judge, correlate: the Faust worker between the node topics and the findings."""
    from streams.app import WorkerSettings, WrongTopicsError, run_worker

    chosen = settings()
    start(chosen, "stream")
    try:
        run_worker(
            WorkerSettings(
                connection=wiring.connection(chosen.kafka),
                cluster=chosen.cluster,
                core=wiring.core_settings(chosen),
                partitions=chosen.topics.partitions,
                registry=wiring.registry(chosen),
                metrics_port=chosen.stream.metrics_port or None,
            )
        )
    except WrongTopicsError as error:
        fail(str(error), code=BAD_USAGE)


@click.group()
def sink() -> None:
    """Write what the stream found to where people look."""


@sink.command("clickhouse")
@click.pass_obj
def sink_clickhouse(settings: Load) -> None:
    """Samples, calls, pods, episodes and incidents into ClickHouse; the schema is brought up to date first."""
    from sinks.batches import Limits
    from sinks.clickhouse.sink import ClickHouseSettings, run
    from sinks.clickhouse.store import StoreError

    chosen = settings()
    start(chosen, "sink-clickhouse")
    try:
        run(
            ClickHouseSettings(
                kafka=wiring.connection(chosen.kafka),
                cluster=chosen.cluster,
                instance=wiring.instance_name(),
                dsn=wiring.store_dsn(chosen),
                registry=wiring.registry(chosen),
                limits=Limits(
                    messages=chosen.clickhouse.batch_messages,
                    sample_linger_s=chosen.clickhouse.sample_seconds,
                    finding_linger_s=chosen.clickhouse.finding_seconds,
                ),
            ),
            until_stopped(),
        )
    except StoreError as error:
        fail(str(error))


@click.command()
@click.option("--seed", default=1, show_default=True, help="Of the noise")
@click.option("--start-after", default=0.0, show_default=True, help="Seconds to wait before the first record")
@click.pass_obj
def simulate(settings: Load, seed: int, start_after: float) -> None:
    """Play the demo's simulated nodes into Kafka; every record says that it is simulated."""
    from producers.simulate.run import SimulateSettings, run

    chosen = settings()
    start(chosen, "simulate")
    run(
        SimulateSettings(
            kafka=wiring.connection(chosen.kafka).confluent(),
            cluster=chosen.cluster,
            seed=seed,
            partitions=chosen.topics.partitions,
            flush_ticks=chosen.agent.flush_ticks,
            buffer_bytes=chosen.agent.buffer_bytes,
            start_after_s=start_after,
        ),
        until_stopped(),
    )


COMMANDS = (demo, stream, sink, simulate)
