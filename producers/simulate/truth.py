"""What really happened in a scenario, as the jobs themselves measured it: the answer that a detector should find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from producers.simulate.engine import TICKS_PER_S, Iteration, Simulation
from producers.simulate.scenario import During, Scenario, demo_scenario, pod_uid

SETTLE_S = 2.0  # the first iterations of a run, and those that a change cuts in two, are left out of the baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Who did it, when, and what each job lost by it; losses in 10^-4 of the job's own speed."""

    namespace: str
    pod: str
    pod_uid: str
    node: str
    device: str
    onset_tick: int
    end_tick: int
    losses_e4: Mapping[str, int]  # victims only, by job key
    innocent: frozenset[str]  # pods that must not be named
    self_slow_job: str
    self_slow_loss_e4: int
    self_slow_begin_tick: int
    self_slow_end_tick: int


def truth(seed: int, start_tick: int, *, scenario: Scenario | None = None) -> Truth:
    """Run the model alone and measure."""
    told = scenario or demo_scenario()
    simulation = Simulation(told, seed)
    simulation.advance(told.seconds * TICKS_PER_S)
    culprit = next(load for load in told.loads if load.name == told.culprit)
    before = During(begin_s=SETTLE_S, end_s=told.active.begin_s)
    losses = {
        job.key: _loss_e4(simulation.iterations_of(job), before, told.active)
        for job in told.jobs
        if culprit.node in job.nodes and job.device == culprit.device
    }
    straggling = next(job for job in told.jobs if job.stragglers)
    return Truth(
        namespace=culprit.namespace,
        pod=culprit.name,
        pod_uid=pod_uid(culprit.namespace, culprit.name),
        node=culprit.node,
        device=culprit.device,
        onset_tick=start_tick + round(told.active.begin_s * TICKS_PER_S),
        end_tick=start_tick + round(told.active.end_s * TICKS_PER_S),
        losses_e4=losses,
        innocent=frozenset(pod_uid(load.namespace, load.name) for load in told.loads if load is not culprit),
        self_slow_job=straggling.key,
        self_slow_loss_e4=_loss_e4(simulation.iterations_of(straggling), before, told.self_slow),
        self_slow_begin_tick=start_tick + round(told.self_slow.begin_s * TICKS_PER_S),
        self_slow_end_tick=start_tick + round(told.self_slow.end_s * TICKS_PER_S),
    )


def _loss_e4(iterations: Sequence[Iteration], before: During, while_slow: During) -> int:
    """1 - T0/T of the iterations that lie wholly inside."""
    quiet, slow = _mean_s(iterations, before), _mean_s(iterations, while_slow)
    return round(10_000 * (1 - quiet / slow))


def _mean_s(iterations: Sequence[Iteration], during: During) -> float:
    inside = [one.duration_s for one in iterations if during.holds(one.begin_s) and one.end_s <= during.end_s]
    return sum(inside) / len(inside)
