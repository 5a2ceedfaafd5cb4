"""What the detector says: job-states, episodes, incidents. All numbers are integers in stated units."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from streams.contract.header import Rung, Source


class Verdict(StrEnum):
    """How sure, and of what."""

    UNKNOWN = "unknown"
    SUSPECTED = "suspected"
    CONFIRMED = "confirmed"
    AMBIGUOUS = "ambiguous"
    UNEXPLAINED = "unexplained"
    NOT_FABRIC = "not_fabric"
    LINK = "link"
    FABRIC = "fabric"
    NO_BASELINE = "no_baseline"
    WITHDRAWN = "withdrawn"


class Kind(StrEnum):
    """The mechanism."""

    UNKNOWN = "unknown"
    BANDWIDTH_SATURATION = "bandwidth_saturation"
    QP_ICM_EXHAUSTION = "qp_icm_exhaustion"
    MR_MTT_THRASH = "mr_mtt_thrash"
    RNR_STALL = "rnr_stall"
    PFC_STORM = "pfc_storm"
    ECN_CNP = "ecn_cnp"
    INCAST = "incast"
    LINK_FLAP = "link_flap"
    LINK_DEGRADED = "link_degraded"
    FABRIC_CONGESTION = "fabric_congestion"
    HANG = "hang"
    NOT_FABRIC = "not_fabric"
    UNEXPLAINED = "unexplained"


class Health(StrEnum):
    """A job's state, as told every five seconds and on change."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    SLOW = "slow"
    NO_BASELINE = "no_baseline"
    NOT_OBSERVED = "not_observed"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A named culprit."""

    holder: str
    namespace: str | None = None
    pod: str | None = None
    pod_uid: str | None = None
    container_id: str | None = None
    tenant: str | None = None
    job: str | None = None
    node: str
    device: str
    port: int
    share_e4: int  # Share of the loss, in 10^-4
    feature: str  # The feature that gave it away: tx_bytes, qp_live, ...
    onset_tick: int | None = None  # Its own rising edge
    recovered_tick: int | None = None  # Its own falling edge
    quiet_level: int | None = None  # Median of the feature per tick while the job was quiet
    episode_level: int | None = None  # Median of the feature per tick while the job was slow


class RuledOut(msgspec.Struct, frozen=True, kw_only=True):
    """A hypothesis that the numbers disprove."""

    what: str  # pod, link, job, port, compute
    holder: str | None = None
    namespace: str | None = None
    pod: str | None = None
    pod_uid: str | None = None
    node: str | None = None
    reason: str  # A short code: started_after, went_on, stopped_before, too_little, active_before, other_port, ...
    numbers: dict[str, int] = {}


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """The tick at which each layer was well again; None: not yet, or not observed."""

    link: int | None = None
    routing: int | None = None
    queue_pair: int | None = None
    traffic: int | None = None
    workload: int | None = None
    telemetry: int | None = None


class EpisodePod(msgspec.Struct, frozen=True, kw_only=True):
    """One of the slowed job's own pods."""

    pod_uid: str
    namespace: str | None = None
    name: str | None = None
    node: str


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One job slower than its baseline, from onset to recovery; the highest revision holds."""

    episode_id: str
    revision: int
    cluster: str
    job: str
    job_name: str | None = None
    job_epoch: int
    tenant: str | None = None
    source: Source = Source.UNKNOWN
    verdict: Verdict = Verdict.UNKNOWN
    kind: Kind = Kind.UNKNOWN
    alarm_tick: int
    onset_tick: int
    recovered_tick: int | None = None
    decided_tick: int  # The first revision's event time that carried this verdict
    as_of_tick: int  # Event time of this revision
    baseline_us: int  # The job's own iteration time before
    slowed_us: int  # Its mean iteration time in the episode
    iterations: int  # Slow iterations counted
    loss_e4: int  # 1 - baseline/slowed, in 10^-4
    loss_low_e4: int
    loss_high_e4: int
    timing_source: str
    nodes: list[str] = []
    pods: list[EpisodePod] = []
    gpus: int | None = None
    gpu_ms_lost: int | None = None  # None: the number of GPUs is not known
    gpu_hour_price_micros: int | None = None
    currency: str | None = None
    price_source: str | None = None
    causes: list[Cause] = []
    ruled_out: list[RuledOut] = []
    rung: Rung = Rung.UNKNOWN
    link_port: str | None = None
    recovery: Recovery = Recovery()
    not_observed: list[str] = []


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """A job's health, every five seconds of event time and on change."""

    cluster: str
    job: str
    job_name: str | None = None
    job_epoch: int
    tenant: str | None = None
    source: Source = Source.UNKNOWN
    tick: int
    health: Health = Health.UNKNOWN
    why: str = ""
    nodes: list[str] = []
    ports: list[str] = []  # node/device/port that the job uses
    gpus: int | None = None
    iteration_us: int | None = None
    baseline_us: int | None = None
    episode_id: str | None = None


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """A job that an incident slowed."""

    episode_id: str
    job: str
    job_name: str | None = None
    tenant: str | None = None
    nodes: list[str] = []
    pods: list[EpisodePod] = []
    gpus: int | None = None
    onset_tick: int
    recovered_tick: int | None = None
    loss_e4: int
    loss_low_e4: int
    loss_high_e4: int
    gpu_ms_lost: int | None = None
    cost_micros: int | None = None  # Millionths of the currency; None: no price or no GPU count
    currency: str | None = None
    price_source: str | None = None


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One cause (a pod, several, or none) with all its victims; the highest revision holds."""

    incident_id: str  # The id of its earliest member episode
    revision: int
    cluster: str
    source: Source = Source.UNKNOWN
    verdict: Verdict = Verdict.UNKNOWN
    kind: Kind = Kind.UNKNOWN
    merged_into: str | None = None
    causes: list[Cause] = []
    victims: list[Victim] = []
    total_cost_micros: int | None = None
    currency: str | None = None
    onset_tick: int
    recovered_tick: int | None = None
    decided_tick: int
    as_of_tick: int
    rung: Rung = Rung.UNKNOWN
    link_port: str | None = None
    ruled_out: list[RuledOut] = []
    recovery: Recovery = Recovery()
    not_observed: list[str] = []
    recommendation: str | None = None
