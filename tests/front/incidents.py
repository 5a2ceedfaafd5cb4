"""Incidents for the tests of what people and scripts read."""

from streams.contract.findings import Cause, EpisodePod, Incident, Kind, Recovery, RuledOut, Verdict, Victim
from streams.contract.header import Rung, Source
from streams.contract.ticks import tick_of_us

ONSET = tick_of_us(1_777_818_731_000_000)  # 2026-05-03T14:32:11Z
RECOVERED = ONSET + 2520  # 4 m 12 s later


def victim(job: str, loss_e4: int, cost_micros: int | None, **changes: object) -> Victim:
    fields: dict[str, object] = {
        "episode_id": f"ep-{job}",
        "job": f"training-team-b/PyTorchJob/{job}",
        "job_name": job,
        "tenant": "team-b",
        "nodes": ["gpu-node-12", "gpu-node-13"],
        "pods": [EpisodePod(pod_uid=f"uid-{job}-0", namespace="training-team-b", name=f"{job}-0", node="gpu-node-12")],
        "gpus": 16,
        "onset_tick": ONSET,
        "recovered_tick": RECOVERED,
        "loss_e4": loss_e4,
        "loss_low_e4": loss_e4 - 150,
        "loss_high_e4": loss_e4 + 160,
        "gpu_ms_lost": 967_680,
        "cost_micros": cost_micros,
        "currency": None if cost_micros is None else "USD",
        "price_source": None if cost_micros is None else "rates file",
    }
    return Victim(**{**fields, **changes})  # type: ignore[arg-type]


def confirmed() -> Incident:
    """One culprit, two victims, a price."""
    return Incident(
        incident_id="7c9d0a52-0000-5000-8000-000000000001",
        revision=9,
        cluster="lab",
        source=Source.KERNEL,
        verdict=Verdict.CONFIRMED,
        kind=Kind.QP_ICM_EXHAUSTION,
        causes=[
            Cause(
                holder="uid-llama",
                namespace="inference-team-a",
                pod="llama-70b-server-84cf2",
                pod_uid="uid-llama",
                tenant="team-a",
                node="gpu-node-12",
                device="mlx5_0",
                port=1,
                share_e4=10_000,
                feature="qp_live",
                onset_tick=ONSET - 2,
                recovered_tick=RECOVERED,
                quiet_level=12,
                episode_level=40_960,
            )
        ],
        victims=[victim("gpt-finetuner-7b2a1", 2400, 183_000_000), victim("llm-pretrain-a100-001", 3100, 241_000_000)],
        total_cost_micros=424_000_000,
        currency="USD",
        onset_tick=ONSET,
        recovered_tick=RECOVERED,
        decided_tick=ONSET + 12,
        as_of_tick=RECOVERED + 50,
        rung=Rung.KERNEL_PROBES,
        ruled_out=[
            RuledOut(
                what="pod",
                holder="uid-embed",
                namespace="inference-team-c",
                pod="embedder-0",
                pod_uid="uid-embed",
                node="gpu-node-12",
                reason="started_after",
                numbers={"edge_tick": ONSET + 32, "late_ticks": 32, "share_e4": 120},
            ),
            RuledOut(what="link", node="gpu-node-12", reason="no_errors", numbers={"symbol_errors": 0}),
        ],
        recovery=Recovery(queue_pair=RECOVERED - 3, workload=RECOVERED),
        not_observed=["switch counters: no access to the fabric manager"],
        recommendation="isolate inference-team-a to nodes [gpu-04, gpu-05]",
    )


def nobody() -> Incident:
    """A job that slowed itself: nothing priced, nobody named, still open."""
    return Incident(
        incident_id="7c9d0a52-0000-5000-8000-000000000002",
        revision=3,
        cluster="lab",
        source=Source.SIMULATED,
        verdict=Verdict.NOT_FABRIC,
        kind=Kind.NOT_FABRIC,
        victims=[victim("gpt-finetuner-7b2a1", 1800, None, gpus=None, gpu_ms_lost=None, recovered_tick=None, pods=[])],
        onset_tick=ONSET,
        decided_tick=ONSET + 30,
        as_of_tick=ONSET + 84,
        ruled_out=[
            RuledOut(
                what="pod",
                holder="uid-flood",
                namespace="batch",
                pod="flood-0",
                pod_uid="uid-flood",
                node="gpu-node-12",
                reason="active_before",
                numbers={"quiet_level": 1_250_000_000, "episode_level": 1_250_000_000},
            )
        ],
    )
