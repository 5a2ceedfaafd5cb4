"""The numbers that steer the three steps, each with its unit, its default and its reason."""

from __future__ import annotations

import msgspec


class JoinSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long `join` waits, and how much it holds."""

    node_silent_ticks: int = 30  # 3 s: six missed flushes of the default length
    job_wait_ticks: int = 100  # 10 s: a new pod's owner chain may reach us after its first communicator
    job_gone_ticks: int = 600  # 60 s without calls and without RDMA objects: the job has left the node
    held_records: int = 1200  # Per node and topic, ten minutes of default flushes; beyond it we stop waiting
    ahead_ticks: int = 6000  # Ten minutes before the watcher's clock: a node's clock is wrong, not the watcher late
    clock_ahead_ticks: int = 6000  # Ten minutes before all that its log has said: a watcher's clock is doubted
    held_pod_lists: int = 64  # Per node: changes of its pods that may lie ahead of its counters


class JudgeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a job counts as slow, and what makes somebody its cause."""

    warmup_iterations: int = 10  # Allocator and autotuning of a fresh job
    baseline_iterations: int = 20  # Fewer give no honest spread
    baseline_window: int = 200
    scale_floor_e4: int = 80  # 0.8 % of the level: real jobs are no quieter (detector study, section 8.2)
    cusum_k: float = 0.6
    cusum_h: float = 8.0
    z_clip: float = 4.0  # One sample adds at most 3.4, so at least three are needed to reach 8
    minimum_effect_e4: int = 300  # 3 %: below it a slowdown is not worth anyone's page
    minimum_slow: int = 3
    split_window: int = 40
    history_ticks: int = 1200  # Two minutes of evidence: 40 s before the onset, and the alarm's own delay
    quiet_ticks: int = 400  # 40 s before the onset: what a suspect did when all was well
    ramp_ticks: int = 22  # 2.2 s: the longest ramp between a cause's edge and its effect
    edge_slack_ticks: int = 3  # 0.25 s rounded up: an edge and an iteration are each dated to a tick
    revise_ticks: int = 50  # An open episode is told again at most this often
    state_ticks: int = 50
    gone_ticks: int = 300  # 30 s without any slice: the job has ended
    dose_floor_e4: int = 1000  # 10 % of the largest dose of that feature on the node
    byte_share_floor_e4: int = 1500  # 15 % of the port's bytes: less cannot saturate it
    margin_e4: int = 3000  # Scores of two suspects closer than this (of 20,000) are a draw


class CorrelateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How findings are grouped."""

    slack_ticks: int = 50  # 5 s: episodes on one node whose alarms are this close are looked at together
    history_ticks: int = 36_000  # One hour: older closed incidents no longer change and are forgotten


class CoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All three."""

    join: JoinSettings = JoinSettings()
    judge: JudgeSettings = JudgeSettings()
    correlate: CorrelateSettings = CorrelateSettings()
