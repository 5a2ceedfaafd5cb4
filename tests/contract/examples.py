"""Full records of every topic; `python -m tests.contract.examples` writes those that avro/examples lacks.

An example that is there is never rewritten: it must decode for ever.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np

from streams.contract import features, findings, header, inputs, plumbing, slices
from streams.contract.calls import COLUMNS, pack_rows
from streams.contract.rosters import roster_bytes, roster_of
from streams.contract.schemas import latest
from streams.contract.series import MISSING, PackedSeries, Series, pack, pack_pairs
from streams.contract.topics import BY_NAME
from streams.contract.wire import Encoder
from tests.paths import repo_root

FOLDER = repo_root() / "avro" / "examples"
TICK = 17_900_000_000


def series(entities: list[int], names: list[int], rows: list[list[int]]) -> PackedSeries:
    return pack(
        Series(entity=np.array(entities, np.int32), name=np.array(names, np.int32), values=np.array(rows, np.int64))
    )


def rows(communicators: int) -> bytes:
    row = [[0, 0, 1, 7, 1 << 20, 4 << 20, 3, 1, 10, 12, 100, 90_000, 0, 0, 0, 0, 0]]
    matrix = np.array(row * communicators, np.int64).reshape(-1, COLUMNS)
    matrix[:, 1] = np.arange(communicators)
    return pack_rows(matrix)


GAP = header.Gap(source="rdma", what="mlx5_ib_post_send", reason="the module is not loaded")
CLOCK = header.Clock(epoch_started_us=1_790_000_000_000_000, monotonic_us=5_000_000, offset_us=-12, max_error_us=900)
WATCHER_CLOCK = header.WatcherClock(watcher_epoch="w-1", seq=42, tick=TICK)
ABOUT = header.About(
    agent="0.1.0",
    kernel="6.8.0",
    libnccl=["2.26.2"],
    devices=[
        header.DeviceAbout(
            device="mlx5_0", driver="mlx5_core", firmware="28.43", board="MT_1", limits={"max_qp": 131072}
        )
    ],
    settings={"flush_ticks": "5"},
)


NIC = inputs.NicCounters(
    cluster="lab",
    node="gpu-01",
    agent_epoch="e-1",
    seq=7,
    first_tick=TICK,
    ticks=5,
    complete_through_tick=TICK + 4,
    source=header.Source.KERNEL,
    clock=CLOCK,
    about=ABOUT,
    ports=[
        inputs.Port(
            device="mlx5_0",
            port=1,
            netdev="ib0",
            link_layer="InfiniBand",
            rate_mbps=400_000,
            capacity_mbps=400_000,
            capacity_source=inputs.CapacitySource.RATE,
        ),
        inputs.Port(device="mlx5_1", port=1),
    ],
    counter_names=["ib/port_xmit_data", "hw/rnr_nak_retry_err", "port/state"],
    counters=series([0, 0, 0, 1], [0, 1, 2, 0], [[1, 2, 3, 4, 5], [0] * 5, [4] * 5, [2**62, 0, MISSING, 0, 9]]),
    resets=[inputs.CounterReset(port=1, counter=0, tick_offset=2)],
    holders=[inputs.Holder(pod_uid="0f1e", container_id="c0ffee", pid=4242, comm="python", cgroup_id=77)],
    devices=["mlx5_0"],
    holdings=pack_pairs([0], [0]),
    feature_names=[features.QP_LIVE, features.TX_BYTES],
    features=series([0, 0], [0, 1], [[64] * 5, [0, 4096, 0, 0, 1]]),
    bytes_rung=header.Rung.KERNEL_PROBES,
    lost_events=3,
    gaps=[GAP],
)
NCCL = inputs.NcclThroughput(
    cluster="lab",
    node="gpu-01",
    agent_epoch="e-1",
    seq=7,
    first_tick=TICK,
    ticks=5,
    complete_through_tick=TICK + 4,
    source=header.Source.KERNEL,
    clock=CLOCK,
    processes=[
        inputs.Process(
            pid=4242,
            started_us=5,
            comm="python",
            pod_uid="0f1e",
            container_id="c0ffee",
            cgroup_id=77,
            hints={"SLURM_JOB_ID": "9"},
        )
    ],
    communicators=[inputs.Communicator(process=0, comm="a1b2", rank=0, nranks=16)],
    rows=rows(1),
    events=[inputs.CommEvent(kind=inputs.CommEventKind.BORN, communicator=0, us=1200, failed=False)],
    lost_events=0,
    gaps=[GAP],
)
PODS = inputs.NodePods(
    cluster="lab",
    node="gpu-01",
    watcher_epoch="w-1",
    seq=3,
    as_of_tick=TICK,
    source=header.Source.KERNEL,
    pods=[
        inputs.Pod(
            pod_uid="0f1e",
            namespace="research",
            name="llm-0",
            tenant="research",
            job=inputs.JobRef(
                key="research/PyTorchJob/llm", kind="PyTorchJob", name="llm", owner_uid="u-1", gpus_total=16
            ),
            gpus=8,
            containers=[inputs.Container(container_id="c0ffee", name="main")],
            qos="guaranteed",
            labels={"team": "nlp"},
            valid_from_tick=TICK - 600,
            valid_to_tick=None,
        )
    ],
    facts=inputs.NodeFacts(
        gpu_model="H200", gpu_hour_price_micros=3_500_000, currency="EUR", price_source="rates", labels={"zone": "a"}
    ),
)
ROSTER = slices.SliceRoster(
    source=header.Source.KERNEL,
    agent_epoch="e-1",
    job_name="llm",
    tenant="research",
    gpus_total=16,
    pods=[slices.SlicePod(pod_uid="0f1e", namespace="research", name="llm-0", gpus=8)],
    gpu_hour_price_micros=3_500_000,
    currency="EUR",
    price_source="rates",
    communicators=[
        slices.SliceCommunicator(comm="a1b2", pid=4242, rank=0, nranks=16, pod_uid="0f1e", moves_bytes=True)
    ],
    ports=[
        slices.SlicePort(
            device="mlx5_0",
            port=1,
            netdev="ib0",
            capacity_mbps=400_000,
            capacity_source=inputs.CapacitySource.RATE,
            used=True,
        )
    ],
    suspects=[
        slices.Suspect(
            holder="dead-beef",
            device="mlx5_0",
            pod_uid="dead-beef",
            container_id="c0de",
            namespace="batch",
            name="etl-3",
            tenant="batch",
            job="batch/Job/etl",
        )
    ],
    feature_names=[features.PORT_TX_BYTES, features.TX_BYTES, features.QP_LIVE],
    bytes_rung=header.Rung.KERNEL_PROBES,
    gaps=[GAP],
)
SLICE = slices.JobSlice(
    cluster="lab",
    job="research/PyTorchJob/llm",
    node="gpu-01",
    seq=7,
    first_tick=TICK,
    ticks=5,
    nic_silent=False,
    nccl_silent=True,
    roster=roster_bytes(ROSTER),
    rows=rows(1),
    features=series([0, 1, 2], [0, 1, 2], [[4, 8, 12, 16, 20], [0, 4096, 0, 0, 1], [512] * 5]),
)
CAUSE = findings.Cause(
    holder="dead-beef",
    namespace="batch",
    pod="etl-3",
    pod_uid="dead-beef",
    container_id="c0de",
    tenant="batch",
    job="batch/Job/etl",
    node="gpu-01",
    device="mlx5_0",
    port=1,
    share_e4=8200,
    feature=features.TX_BYTES,
    onset_tick=TICK + 10,
    recovered_tick=TICK + 300,
    quiet_level=0,
    episode_level=1 << 30,
)
RULED_OUT = findings.RuledOut(
    what="pod",
    holder="cafe",
    namespace="research",
    pod="idle",
    pod_uid="cafe",
    node="gpu-01",
    reason="started_after",
    numbers={"late_ticks": 40},
)
RECOVERY = findings.Recovery(link=None, routing=None, queue_pair=TICK, traffic=TICK + 1, workload=TICK + 2)
POD = findings.EpisodePod(pod_uid="0f1e", namespace="research", name="llm-0", node="gpu-01")
EPISODE = findings.Episode(
    episode_id="7a0c1d5e-0000-5000-8000-000000000001",
    revision=4,
    cluster="lab",
    job="research/PyTorchJob/llm",
    job_name="llm",
    job_epoch=1,
    tenant="research",
    source=header.Source.KERNEL,
    verdict=findings.Verdict.CONFIRMED,
    kind=findings.Kind.BANDWIDTH_SATURATION,
    alarm_tick=TICK + 20,
    onset_tick=TICK + 11,
    recovered_tick=TICK + 302,
    decided_tick=TICK + 310,
    as_of_tick=TICK + 311,
    baseline_us=500_000,
    slowed_us=800_000,
    iterations=36,
    loss_e4=3750,
    loss_low_e4=3500,
    loss_high_e4=4000,
    timing_source="enqueue",
    nodes=["gpu-01"],
    pods=[POD],
    gpus=16,
    gpu_ms_lost=174_600,
    gpu_hour_price_micros=3_500_000,
    currency="EUR",
    price_source="rates",
    causes=[CAUSE],
    ruled_out=[RULED_OUT],
    rung=header.Rung.KERNEL_PROBES,
    link_port=None,
    recovery=RECOVERY,
    not_observed=["switch counters"],
)
STATE = findings.JobState(
    cluster="lab",
    job="research/PyTorchJob/llm",
    job_name="llm",
    job_epoch=1,
    tenant="research",
    source=header.Source.KERNEL,
    tick=TICK + 50,
    health=findings.Health.SLOW,
    why="37.5 % slower than its baseline",
    nodes=["gpu-01"],
    ports=["gpu-01/mlx5_0/1"],
    gpus=16,
    iteration_us=800_000,
    baseline_us=500_000,
    episode_id=EPISODE.episode_id,
)
INCIDENT = findings.Incident(
    incident_id=EPISODE.episode_id,
    revision=4,
    cluster="lab",
    source=header.Source.KERNEL,
    verdict=findings.Verdict.CONFIRMED,
    kind=findings.Kind.BANDWIDTH_SATURATION,
    merged_into=None,
    causes=[CAUSE],
    victims=[
        findings.Victim(
            episode_id=EPISODE.episode_id,
            job=EPISODE.job,
            job_name="llm",
            tenant="research",
            nodes=["gpu-01"],
            pods=[POD],
            gpus=16,
            onset_tick=TICK + 11,
            recovered_tick=TICK + 302,
            loss_e4=3750,
            loss_low_e4=3500,
            loss_high_e4=4000,
            gpu_ms_lost=174_600,
            cost_micros=169_750,
            currency="EUR",
            price_source="rates",
        )
    ],
    total_cost_micros=169_750,
    currency="EUR",
    onset_tick=TICK + 11,
    recovered_tick=TICK + 302,
    decided_tick=TICK + 310,
    as_of_tick=TICK + 311,
    rung=header.Rung.KERNEL_PROBES,
    ruled_out=[RULED_OUT],
    recovery=RECOVERY,
    not_observed=["switch counters"],
    recommendation="Move batch/etl-3 off mlx5_0",
)
CHUNK = plumbing.StateChunk(
    cluster="lab",
    step="judge",
    partition=3,
    owner=2,
    snapshot=9,
    chunk=0,
    chunks=1,
    format=1,
    covers=[plumbing.Position(topic="job-slices", partition=3, offset=1234)],
    body=b"\x00\x01\xff",
)
LETTER = plumbing.DeadLetter(
    component="stream",
    topic="nic-counters",
    partition=3,
    offset=99,
    reason="no Confluent prefix",
    key=b"gpu-01",
    value=b"\x01rubbish\xff",
    headers={"trace": b"\x00"},
    broker_time_ms=1_790_000_000_000,
)
HEALTH = plumbing.PipelineHealth(
    cluster="lab",
    component="agent",
    instance="gpu-01",
    epoch="e-1",
    us=1_790_000_000_000_000,
    source=header.Source.KERNEL,
    status=plumbing.HealthStatus.DEGRADED,
    message="one probe is missing",
    probes_wanted=12,
    probes_attached=11,
    gaps=[GAP],
    counts={"lost_events": 3},
)

EXAMPLES: dict[tuple[str, str], msgspec.Struct] = {
    ("nic-counters", "node"): NIC,
    ("nic-counters", "clock"): inputs.NicCounters(
        cluster="lab",
        node="",
        agent_epoch="",
        seq=0,
        first_tick=TICK,
        ticks=0,
        complete_through_tick=TICK,
        watcher_clock=WATCHER_CLOCK,
    ),
    ("nccl-throughput", "node"): NCCL,
    ("node-pods", "node"): PODS,
    ("job-slices", "slice"): SLICE,
    ("job-slices", "progress"): slices.JobSlice(
        cluster="lab", job="", progress=slices.Progress(input_partition=3, through_tick=TICK)
    ),
    ("episodes", "confirmed"): EPISODE,
    ("job-states", "slow"): STATE,
    ("incidents", "confirmed"): INCIDENT,
    ("state", "chunk"): CHUNK,
    ("dead-letters", "rubbish"): LETTER,
    ("pipeline-health", "degraded"): HEALTH,
}


def path_of(topic: str, name: str, suffix: str) -> Path:
    return FOLDER / f"{topic}.v{latest(topic).version}.{name}.{suffix}"


def plain(record: msgspec.Struct) -> object:
    """A record as JSON has it: bytes as base64, but a slice's roster spelled out."""
    content = json.loads(msgspec.json.encode(record))
    if isinstance(record, slices.JobSlice):
        content["roster"] = json.loads(msgspec.json.encode(roster_of(record.roster)))
    return content


def write_missing() -> None:
    FOLDER.mkdir(exist_ok=True)
    for (topic, name), record in EXAMPLES.items():
        target = path_of(topic, name, "bin")
        if target.exists():
            continue
        target.write_bytes(Encoder(BY_NAME[topic])(record))
        text = json.dumps(plain(record), indent=1, ensure_ascii=False)
        path_of(topic, name, "json").write_text(text + "\n", encoding="utf-8")
        print(f"wrote {target.name}")


if __name__ == "__main__":
    write_missing()
