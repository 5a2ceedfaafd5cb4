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
def agent(settings: Load) -> None:
    """Watch this node: RDMA objects and bytes, NCCL calls, port counters, ten times a second.

    Needs root, or CAP_BPF and CAP_PERFMON for the probes and CAP_SYS_PTRACE to read other processes' maps, and on
    the host python3-bpfcc and kernel headers. What cannot be seen becomes a named gap, and everything else goes on.
    Nothing on the node is changed and no packet is sent.
    """
    from producers.agent import AgentSettings, run

    chosen = settings()
    start(chosen, "agent")
    run(
        AgentSettings(
            kafka=wiring.connection(chosen.kafka).confluent(),
            cluster=chosen.cluster,
            node=wiring.node_name(chosen),
            flush_ticks=chosen.agent.flush_ticks,
            buffer_bytes=chosen.agent.buffer_bytes,
            sysfs=chosen.agent.sysfs,
            proc=chosen.agent.proc,
            cgroup_root=chosen.agent.cgroup,
            rdma_probes=chosen.agent.rdma_probes,
            nccl_probes=chosen.agent.nccl_probes,
            nccl_libraries=tuple(chosen.agent.nccl_libraries),
            port_capacity_mbps=chosen.agent.port_capacity_mbps,
            metrics_port=chosen.agent.metrics_port or None,
            metrics_host=chosen.agent.metrics_host,
            registered_ids=wiring.registered_ids(chosen) or {},
            version=wiring.code_version(),
        ),
        until_stopped(),
    )


@click.command()
@click.option(
    "--file", type=click.Path(path_type=Path), help="YAML or JSON of nodes and pods, reread on change [pods.file]"
)
@click.pass_obj
def pods(settings: Load, file: Path | None) -> None:
    """Tell the stream which pods run where, and tick the clock by which silence is known. Exactly one per cluster."""
    from producers.pods.run import PodsSettings, run

    chosen = settings()
    named = file or chosen.pods.file
    if named is None:
        fail("pods.file is not set: name a file of pods with --file or FABRIC_SENTINEL_PODS__FILE", code=BAD_USAGE)
    start(chosen, "pods")
    run(
        PodsSettings(
            kafka=wiring.connection(chosen.kafka).confluent(),
            cluster=chosen.cluster,
            file=named,
            partitions=chosen.topics.partitions,
            buffer_bytes=chosen.agent.buffer_bytes,
            metrics_port=chosen.pods.metrics_port or None,
            metrics_host=chosen.pods.metrics_host,
            registered_ids=wiring.registered_ids(chosen) or {},
        ),
        until_stopped(),
    )


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
                registered_ids=wiring.registered_ids(chosen),
                metrics_port=chosen.stream.metrics_port or None,
                metrics_host=chosen.stream.metrics_host,
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


@sink.command("prometheus")
@click.option("--host", help="Bind address [prometheus.host]")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port of /metrics; 0: any [prometheus.port]")
@click.pass_obj
def sink_prometheus(settings: Load, host: str | None, port: int | None) -> None:
    """Open incidents, jobs' losses and the pipeline's own health as metrics; all state is read back from Kafka."""
    from sinks.prometheus.exporter import CannotServeError, PrometheusSettings, run

    chosen = settings()
    start(chosen, "sink-prometheus")
    try:
        run(
            PrometheusSettings(
                kafka=wiring.connection(chosen.kafka),
                cluster=chosen.cluster,
                instance=wiring.instance_name(),
                host=host or chosen.prometheus.host,
                port=chosen.prometheus.port if port is None else port,
                registry=wiring.registry(chosen),
            ),
            until_stopped(),
        )
    except CannotServeError as error:
        fail(f"{error}; choose another --host or --port", code=BAD_USAGE)


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
            registered_ids=wiring.registered_ids(chosen) or {},
        ),
        until_stopped(),
    )


COMMANDS = (demo, agent, pods, stream, sink, simulate)
