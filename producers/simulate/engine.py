"""The model itself: continuous time between ticks, bytes and calls out; the same seed gives the same story."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from producers.simulate.scenario import Job, Load, Scenario
from producers.simulate.sharing import Demand, share

TICK_S = 0.1
TICKS_PER_S = 10
SCALAR_S = 70e-6  # the small collective after the gradients, on an idle fabric
RANK_NOISE = 1 / 3  # of the job's noise: ranks of one job differ less than iterations do
MAX_ITERATIONS = 100_000  # a live run may last for days
RECEIVED_SHARE = 0.02  # of what a load sends comes back: acknowledgements

PodKey = tuple[str, str, str]  # node, namespace/name, device


@dataclass(slots=True, kw_only=True)
class Call:
    """One rank's call of one collective; `duration_s` is None until the last rank came and the bytes went."""

    rank: int
    seq: int
    gradients: bool  # else the scalar
    at_s: float
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One iteration of a job, as the job itself would measure it."""

    begin_s: float
    end_s: float
    transfer_s: float

    @property
    def duration_s(self) -> float:
        """From its begin to the next one's."""
        return self.end_s - self.begin_s


@dataclass(slots=True, kw_only=True)
class _Training:
    job: Job
    noise: random.Random
    begin_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)
    left_bytes: float | None = None  # None: computing
    sends_from_s: float = 0.0
    seq: int = 0
    calls: list[Call] = field(default_factory=list)
    open_calls: list[Call] = field(default_factory=list)
    iterations: deque[Iteration] = field(default_factory=lambda: deque(maxlen=MAX_ITERATIONS))

    def begin(self, at_s: float) -> None:
        """Start an iteration: each rank computes, with noise of the iteration and of the rank."""
        job = self.job
        self.begin_s, self.left_bytes = at_s, None
        common = 1 + self.noise.gauss(0, job.noise)
        self.arrivals_s = [
            at_s + job.compute_s * common * (1 + self.noise.gauss(0, job.noise * RANK_NOISE)) * self._factor(rank, at_s)
            for rank in range(job.ranks)
        ]
        self.seq += 1
        self.open_calls = [
            Call(rank=rank, seq=self.seq, gradients=True, at_s=arrival_s)
            for rank, arrival_s in enumerate(self.arrivals_s)
        ]
        self.calls += self.open_calls

    def _factor(self, rank: int, at_s: float) -> float:
        slow = [one.factor for one in self.job.stragglers if one.rank == rank and one.during.holds(at_s)]
        return max(slow, default=1.0)

    def send(self, at_s: float) -> None:
        """The last rank is there: bytes flow."""
        self.left_bytes, self.sends_from_s = float(self.job.bytes_per_iteration), at_s

    def finish(self, at_s: float) -> None:
        """The bytes are through: every rank goes on, the scalar follows, the next iteration begins."""
        for call in self.open_calls:
            call.duration_s = at_s - call.at_s
        self.seq += 1
        for rank in range(self.job.ranks):
            late_s = abs(self.noise.gauss(0, 20e-6))
            self.calls.append(
                Call(rank=rank, seq=self.seq, gradients=False, at_s=at_s + late_s, duration_s=SCALAR_S + 60e-6 - late_s)
            )
        begin_s = at_s + self.job.gap_s
        self.iterations.append(Iteration(begin_s=self.begin_s, end_s=begin_s, transfer_s=at_s - self.sends_from_s))
        self.begin(begin_s)


class Simulation:
    """Advance tick by tick; read bytes per tick, calls and iterations."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.now_tick = 0  # ticks that are over
        self._trainings = [
            _Training(job=job, noise=random.Random(f"{seed}/{job.key}"))  # noqa: S311  a model, not a secret
            for job in scenario.jobs
        ]
        self._wobbles = {
            load.name: random.Random(f"{seed}/{load.name}")  # noqa: S311
            for load in scenario.loads
        }
        self._demand_parts = {load.name: 1.0 for load in scenario.loads}
        self._capacity = {
            (node, port.device): port.usable_bytes_per_s for node in scenario.nodes for port in scenario.ports
        }
        self._sent_bytes: deque[dict[PodKey, float]] = deque()
        for place, training in enumerate(self._trainings):
            training.begin(0.05 + 0.03 * place)

    def advance(self, ticks: int) -> None:
        """Let time pass."""
        for _ in range(ticks):
            self._tick()

    def take_sent(self, ticks: int) -> list[dict[PodKey, float]]:
        """Bytes that each pod sent through each device, for the oldest ticks not yet taken."""
        return [self._sent_bytes.popleft() for _ in range(ticks)]

    def calls_of(self, job: Job, first_tick: int, last_tick: int) -> list[Call]:
        """The job's calls that were made in these ticks, and forgets all up to them."""
        training = next(one for one in self._trainings if one.job is job)
        end_s = (last_tick + 1) * TICK_S
        found = [call for call in training.calls if call.at_s < end_s]
        training.calls = [call for call in training.calls if call.at_s >= end_s]
        return [call for call in found if call.at_s >= first_tick * TICK_S]

    def iterations_of(self, job: Job) -> Sequence[Iteration]:
        """What the job itself measured, oldest first."""
        return list(next(one for one in self._trainings if one.job is job).iterations)

    def demand_of(self, load: Load, at_s: float) -> float:
        """What a load would send at this moment."""
        if not any(during.holds(at_s) for during in load.active):
            return 0.0
        return load.bytes_per_s * self._demand_parts[load.name]

    def _tick(self) -> None:
        at_s, end_s = self.now_tick * TICK_S, (self.now_tick + 1) * TICK_S
        if self.now_tick % TICKS_PER_S == 0:
            for load in self.scenario.loads:
                part = 1 + load.wobble * self._wobbles[load.name].uniform(-1, 1)
                self._demand_parts[load.name] = part
        sent: dict[PodKey, float] = defaultdict(float)
        while at_s < end_s:
            at_s = self._step(at_s, end_s, sent)
        self._sent_bytes.append(dict(sent))
        self.now_tick += 1

    def _step(self, at_s: float, end_s: float, sent: dict[PodKey, float]) -> float:
        """One stretch in which no rate changes; returns its end."""
        for training in self._trainings:
            if training.left_bytes is None and max(training.arrivals_s) <= at_s:
                training.send(at_s)
        job_rates, load_rates = self._rates(at_s)
        until_s = end_s
        for training in self._trainings:
            if training.left_bytes is None:
                until_s = min(until_s, max(training.arrivals_s))
            else:
                until_s = min(until_s, at_s + training.left_bytes / job_rates[training.job.key])
        until_s = max(until_s, at_s + 1e-9)  # a float that does not grow would stand still for ever
        self._move(until_s - at_s, job_rates, load_rates, sent)
        for training in self._trainings:
            if training.left_bytes is not None and training.left_bytes <= 1.0:
                training.finish(until_s)
        return until_s

    def _rates(self, at_s: float) -> tuple[dict[str, float], dict[str, float]]:
        sending = [one.job for one in self._trainings if one.left_bytes is not None]
        job_rates = {job.key: job.max_bytes_per_s for job in sending}
        load_rates: dict[str, float] = {}
        for _ in range(2):  # the second time, ports know that a job is held back by another of its nodes
            at_most = dict(job_rates)
            for (node, device), capacity in self._capacity.items():
                there = [job for job in sending if node in job.nodes and job.device == device]
                loads = [load for load in self.scenario.loads if (load.node, load.device) == (node, device)]
                demands = {
                    job.key: Demand(bytes_per_s=at_most[job.key], queue_pairs=job.queue_pairs) for job in there
                } | {
                    load.name: Demand(bytes_per_s=self.demand_of(load, at_s), queue_pairs=load.queue_pairs)
                    for load in loads
                }
                given = share(capacity, demands)
                for job in there:
                    job_rates[job.key] = min(job_rates[job.key], given[job.key])
                load_rates |= {load.name: given.get(load.name, 0.0) for load in loads}
        return job_rates, load_rates

    def _move(
        self, for_s: float, job_rates: dict[str, float], load_rates: dict[str, float], sent: dict[PodKey, float]
    ) -> None:
        for training in self._trainings:
            if training.left_bytes is None:
                continue
            job, moved = training.job, job_rates[training.job.key] * for_s
            training.left_bytes -= moved
            for node in job.nodes:
                for pod in job.pod_names(node):
                    sent[node, f"{job.namespace}/{pod}", job.device] += moved / job.pods_per_node
        for load in self.scenario.loads:
            if load_rates[load.name]:
                sent[load.node, f"{load.namespace}/{load.name}", load.device] += load_rates[load.name] * for_s
