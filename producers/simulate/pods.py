"""The simulated cluster's pods, node by node."""

from __future__ import annotations

from producers.simulate.engine import TICKS_PER_S
from producers.simulate.scenario import During, Job, Load, Scenario, container_id, pod_uid
from streams.contract.header import Source
from streams.contract.inputs import Container, JobRef, NodeFacts, NodePods, Pod

OLDER_TICKS = 36_000  # pods that are there from the beginning are an hour old


def pods_of(scenario: Scenario, node: str, *, start_tick: int, now_tick: int) -> list[Pod]:
    """The node's pods as the watcher knows them now; those that have ended stay in the list."""
    pods = [
        _pod(job.namespace, name, job.tenant, start_tick=start_tick, gpus=job.gpus_per_pod, job=job)
        for job in scenario.jobs
        if node in job.nodes
        for name in job.pod_names(node)
    ]
    begun = [load for load in scenario.loads if load.node == node and _has_begun(load, now_tick - start_tick)]
    return pods + [_load_pod(load, start_tick=start_tick, now_tick=now_tick) for load in begun]


def node_pods(
    scenario: Scenario, node: str, *, cluster: str, watcher_epoch: str, seq: int, start_tick: int, now_tick: int
) -> NodePods:
    """The record of one node."""
    return NodePods(
        cluster=cluster,
        node=node,
        watcher_epoch=watcher_epoch,
        seq=seq,
        as_of_tick=now_tick,
        source=Source.SIMULATED,
        pods=pods_of(scenario, node, start_tick=start_tick, now_tick=now_tick),
        facts=NodeFacts(
            gpu_model=scenario.gpu_model,
            gpu_hour_price_micros=scenario.gpu_hour_price_micros,
            currency=scenario.currency,
            price_source=scenario.price_source,
        ),
    )


def change_ticks(scenario: Scenario) -> set[int]:
    """Ticks after the start at which some node's list changes."""
    lives = [load.exists for load in scenario.loads if load.exists is not None]
    ends = [second for life in lives for second in (life.begin_s, life.end_s) if second != float("inf")]
    return {round(second * TICKS_PER_S) for second in ends}


def exists(load: Load, tick: int) -> bool:
    """True in the ticks after the start in which the pod runs."""
    return load.exists is None or load.exists.holds(tick / TICKS_PER_S)


def _has_begun(load: Load, tick: int) -> bool:
    return load.exists is None or tick >= load.exists.begin_s * TICKS_PER_S


def _load_pod(load: Load, *, start_tick: int, now_tick: int) -> Pod:
    life = load.exists or During(begin_s=-OLDER_TICKS / TICKS_PER_S, end_s=float("inf"))
    ended = life.end_s != float("inf") and now_tick >= start_tick + round(life.end_s * TICKS_PER_S)
    return _pod(
        load.namespace,
        load.name,
        load.tenant,
        start_tick=start_tick,
        gpus=load.gpus,
        valid_from_tick=start_tick + round(life.begin_s * TICKS_PER_S),
        valid_to_tick=start_tick + round(life.end_s * TICKS_PER_S) if ended else None,
    )


def _pod(
    namespace: str,
    name: str,
    tenant: str,
    *,
    start_tick: int,
    gpus: int,
    job: Job | None = None,
    valid_from_tick: int | None = None,
    valid_to_tick: int | None = None,
) -> Pod:
    return Pod(
        pod_uid=pod_uid(namespace, name),
        namespace=namespace,
        name=name,
        tenant=tenant,
        job=None
        if job is None
        else JobRef(
            key=job.key,
            kind="PyTorchJob",
            name=job.name,
            owner_uid=pod_uid(namespace, f"PyTorchJob/{job.name}"),
            gpus_total=job.ranks,
        ),
        gpus=gpus,
        containers=[Container(container_id=container_id(namespace, name), name="main")],
        qos="Guaranteed" if gpus else "Burstable",
        labels={"simulated": "true"},
        valid_from_tick=start_tick - OLDER_TICKS if valid_from_tick is None else valid_from_tick,
        valid_to_tick=valid_to_tick,
    )
