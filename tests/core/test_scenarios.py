"""What the detector says of small worlds whose truth is known: who is named, who is not, and by how much."""

from __future__ import annotations

from itertools import pairwise

import pytest

from streams.contract.findings import Health, Incident, Kind, Verdict
from streams.contract.header import Rung, Source
from tests.core.findings import Kept, run
from tests.core.scene import START, Load, Scene, Training

LLAMA = Training(name="llama", nodes=("n1", "n2"))
ON = (800, 1200)
NOISY = Load(name="noisy", node="n1", on=ON, tx_per_tick=5_000_000)


def only(kept: Kept) -> Incident:
    (incident,) = kept.standing()
    return incident


def reasons(incident: Incident) -> dict[str | None, str]:
    return {entry.pod: entry.reason for entry in incident.ruled_out}


def names(incident: Incident) -> list[str | None]:
    return [cause.pod for cause in incident.causes]


def test_a_clean_run_with_a_heavy_neighbour_names_nobody_and_is_healthy() -> None:
    kept = run(Scene(ticks=1500, trainings=[LLAMA], loads=[Load(name="steady", node="n1", tx_per_tick=3_000_000)]))
    assert kept.episodes == {}
    assert kept.incidents == {}
    assert kept.states["train/job/llama"].health is Health.HEALTHY


def test_a_bandwidth_culprit_is_named_with_port_edges_loss_and_price() -> None:
    incident = only(run(Scene(ticks=1500, trainings=[LLAMA], loads=[NOISY])))
    assert (incident.verdict, incident.kind) == (Verdict.CONFIRMED, Kind.BANDWIDTH_SATURATION)
    (cause,) = incident.causes
    assert (cause.namespace, cause.pod, cause.node, cause.device, cause.port) == ("serve", "noisy", "n1", "mlx5_0", 1)
    assert (cause.share_e4, cause.feature) == (10_000, "tx_bytes")
    assert (cause.onset_tick, cause.recovered_tick) == (START + 800, START + 1200)
    assert (incident.onset_tick, incident.recovered_tick) == (START + 800, START + 1200)
    (victim,) = incident.victims
    assert abs(victim.loss_e4 - 3125) <= 100  # Quiet 550 ms, slow 800 ms
    assert victim.loss_low_e4 <= 3125 <= victim.loss_high_e4
    lost_gpu_ms = 16 * (40_000 - 40_000 * 550 // 800)
    assert victim.gpu_ms_lost == pytest.approx(lost_gpu_ms, rel=0.03)
    assert victim.gpu_ms_lost is not None
    assert victim.cost_micros == round(victim.gpu_ms_lost * 2_500_000 / 3_600_000)
    assert incident.total_cost_micros == victim.cost_micros
    assert incident.rung is Rung.KERNEL_PROBES
    assert incident.recommendation == "move serve/noisy off port mlx5_0 of n1, or cap its egress"


def test_a_culprit_is_suspected_within_three_slow_steps_and_confirmed_only_after_recovery() -> None:
    revisions = run(Scene(ticks=1500, trainings=[LLAMA], loads=[NOISY])).revisions
    assert revisions[0].verdict is Verdict.SUSPECTED
    assert revisions[0].as_of_tick <= START + 800 + 3 * 8 + 5
    assert [episode.revision for episode in revisions] == list(range(1, len(revisions) + 1))
    assert {episode.verdict for episode in revisions[:-1]} == {Verdict.SUSPECTED}
    assert revisions[-1].verdict is Verdict.CONFIRMED
    assert len({episode.episode_id for episode in revisions}) == 1
    gaps = [after.as_of_tick - before.as_of_tick for before, after in pairwise(revisions)]
    assert min(gaps[:-1]) >= 50


def test_a_heavy_pod_that_was_always_there_is_ruled_out_with_its_numbers() -> None:
    steady = Load(name="steady", node="n1", tx_per_tick=2_000_000, harm=0)
    incident = only(run(Scene(ticks=1500, trainings=[LLAMA], loads=[NOISY, steady])))
    assert names(incident) == ["noisy"]
    (entry,) = incident.ruled_out
    assert (entry.pod, entry.reason, entry.node) == ("steady", "active_before", "n1")
    assert entry.numbers["quiet_level"] == entry.numbers["episode_level"] == 2_000_000


def test_a_job_that_sleeps_between_steps_during_a_harmless_flood_is_not_the_fabrics_fault() -> None:
    sleeper = Training(name="llama", nodes=("n1", "n2"), sleeps=((*ON, 200_000),))
    flood = Load(name="flood", node="n1", on=ON, tx_per_tick=50_000_000, harm=0)
    incident = only(run(Scene(ticks=1500, trainings=[sleeper], loads=[flood])))
    assert (incident.verdict, incident.kind) == (Verdict.NOT_FABRIC, Kind.NOT_FABRIC)
    assert incident.causes == []
    assert abs(incident.victims[0].loss_e4 - 2667) <= 100
    assert reasons(incident) == {"flood": "transfer_unchanged"}


def test_a_pod_that_started_after_the_onset_is_disproven() -> None:
    late = Load(name="late", node="n1", on=(840, 1200), tx_per_tick=3_000_000, harm=0)
    incident = only(run(Scene(ticks=1500, trainings=[LLAMA], loads=[NOISY, late])))
    assert names(incident) == ["noisy"]
    assert reasons(incident) == {"late": "started_after"}
    assert incident.ruled_out[0].numbers["edge_tick"] == START + 840


def test_a_pod_that_went_on_after_the_recovery_is_disproven() -> None:
    goes_on = Load(name="goes-on", node="n1", on=(800, 1500), tx_per_tick=3_000_000, harm=0)
    kept = run(Scene(ticks=1500, trainings=[LLAMA], loads=[NOISY, goes_on]))
    assert kept.revisions[0].verdict is Verdict.AMBIGUOUS
    assert sum(cause.share_e4 for cause in kept.revisions[0].causes) == 10_000
    incident = only(kept)
    assert (incident.verdict, names(incident)) == (Verdict.CONFIRMED, ["noisy"])
    assert reasons(incident) == {"goes-on": "went_on"}


def test_a_pod_that_stopped_long_before_the_recovery_is_disproven() -> None:
    stops = Load(name="stops", node="n1", on=(800, 900), tx_per_tick=3_000_000, harm=0)
    incident = only(run(Scene(ticks=1500, trainings=[LLAMA], loads=[NOISY, stops])))
    assert names(incident) == ["noisy"]
    assert reasons(incident) == {"stops": "stopped_before"}


def test_a_tiny_pod_with_the_culprits_own_edges_is_not_named() -> None:
    tiny = Load(name="tiny", node="n1", on=ON, tx_per_tick=100_000, harm=0)
    incident = only(run(Scene(ticks=1500, trainings=[LLAMA], loads=[NOISY, tiny])))
    assert names(incident) == ["noisy"]
    assert reasons(incident) == {"tiny": "too_little"}


def test_a_pod_on_a_port_that_the_job_does_not_use_is_not_named() -> None:
    elsewhere = Load(name="elsewhere", node="n1", on=ON, tx_per_tick=9_000_000, device="mlx5_1", harm=0)
    incident = only(run(Scene(ticks=1500, trainings=[LLAMA], loads=[NOISY, elsewhere])))
    assert names(incident) == ["noisy"]
    assert reasons(incident) == {"elsewhere": "other_port"}


def test_two_pods_with_the_same_edges_are_both_named_with_shares_and_nobody_is_confirmed() -> None:
    one = Load(name="one", node="n1", on=ON, tx_per_tick=3_000_000)
    two = Load(name="two", node="n1", on=ON, tx_per_tick=3_000_000)
    incident = only(run(Scene(ticks=1500, trainings=[LLAMA], loads=[one, two])))
    assert incident.verdict is Verdict.AMBIGUOUS
    assert [(cause.pod, cause.share_e4) for cause in incident.causes] == [("one", 5000), ("two", 5000)]


def test_nobody_is_named_when_the_cause_is_invisible() -> None:
    ghost = Load(name="ghost", node="n1", on=ON, slows=0.4, qps=0)
    heavy = Load(name="heavy", node="n1", tx_per_tick=3_000_000, harm=0)
    incident = only(run(Scene(ticks=1500, trainings=[LLAMA], loads=[ghost, heavy])))
    assert (incident.verdict, incident.kind, incident.causes) == (Verdict.UNEXPLAINED, Kind.UNEXPLAINED, [])
    assert reasons(incident) == {"heavy": "active_before"}
    assert incident.recommendation is None


def test_registering_memory_in_a_loop_without_bytes_is_named_by_its_kind() -> None:
    churner = Load(name="churner", node="n1", on=ON, slows=0.4, mr_churn=50)
    incident = only(run(Scene(ticks=1500, trainings=[LLAMA], loads=[churner])))
    assert (incident.verdict, incident.kind) == (Verdict.CONFIRMED, Kind.MR_MTT_THRASH)
    assert names(incident) == ["churner"]


def test_thousands_of_queue_pairs_are_named_only_when_the_job_suffers() -> None:
    opener = Load(name="opener", node="n1", on=ON, qps=4096, slows=0.4)
    assert only(run(Scene(ticks=1500, trainings=[LLAMA], loads=[opener]))).kind is Kind.QP_ICM_EXHAUSTION
    idle = Load(name="opener", node="n1", on=ON, qps=4096)
    assert run(Scene(ticks=1500, trainings=[LLAMA], loads=[idle])).incidents == {}


def test_a_link_that_went_down_is_the_links_fault_and_no_pod_is_named() -> None:
    ghost = Load(name="ghost", node="n1", on=ON, slows=0.4)
    incident = only(run(Scene(ticks=1500, trainings=[LLAMA], loads=[ghost], link_down=("n1", 800))))
    assert (incident.verdict, incident.kind, incident.causes) == (Verdict.LINK, Kind.LINK_FLAP, [])
    assert incident.link_port == "n1/mlx5_0/1"


def test_two_jobs_slowed_by_one_culprit_are_one_incident_with_two_victims() -> None:
    gpt = Training(name="gpt", nodes=("n1",), compute_us=500_000, bytes_per_step=10_000_000)
    kept = run(Scene(ticks=1500, trainings=[LLAMA, gpt], loads=[NOISY]))
    incident = only(kept)
    assert sorted(str(victim.job_name) for victim in incident.victims) == ["gpt", "llama"]
    assert names(incident) == ["noisy"]
    costs = [victim.cost_micros or 0 for victim in incident.victims]
    assert incident.total_cost_micros == sum(costs)
    (merged,) = [other for other in kept.incidents.values() if other.merged_into is not None]
    assert merged.merged_into == incident.incident_id
    assert merged.revision == incident.revision


@pytest.mark.parametrize(
    ("taken", "loss_e4"), [(1_000_000, 481), (2_000_000, 1020), (5_000_000, 3125), (8_000_000, 6452)]
)
def test_the_loss_is_right_within_a_point_in_clean_data(taken: int, loss_e4: int) -> None:
    load = Load(name="noisy", node="n1", on=ON, tx_per_tick=taken)
    (episode,) = run(Scene(ticks=1500, trainings=[LLAMA], loads=[load])).episodes.values()
    assert abs(episode.loss_e4 - loss_e4) <= 100


@pytest.mark.parametrize("compute_us", [120_000, 450_000, 2_500_000])
def test_short_and_long_steps_find_the_same_culprit(compute_us: int) -> None:
    job = Training(name="one", nodes=("n1",), compute_us=compute_us, bytes_per_step=25_000_000)
    scene = Scene(
        ticks=2600, trainings=[job], loads=[Load(name="noisy", node="n1", on=(1400, 2000), tx_per_tick=5_000_000)]
    )
    incident = only(run(scene))
    assert (incident.verdict, names(incident)) == (Verdict.CONFIRMED, ["noisy"])


def test_steps_that_hide_in_a_tick_accuse_nobody_by_coincidence() -> None:
    fast = Training(name="fast", nodes=("n1",), compute_us=20_000, bytes_per_step=2_000_000, sleeps=((*ON, 30_000),))
    flood = Load(name="flood", node="n1", on=ON, tx_per_tick=60_000_000, harm=0)
    incident = only(run(Scene(ticks=1500, trainings=[fast], loads=[flood])))
    assert (incident.verdict, incident.causes) == (Verdict.UNEXPLAINED, [])
    assert any("could not be separated" in line for line in incident.not_observed)


def test_a_job_that_ends_under_a_suspect_is_closed_as_suspected() -> None:
    ends = Training(name="llama", nodes=("n1", "n2"), on=(0, 1000))
    scene = Scene(
        ticks=2200, trainings=[ends], loads=[Load(name="noisy", node="n1", on=(800, 2200), tx_per_tick=5_000_000)]
    )
    kept = run(scene)
    incident = only(kept)
    assert (incident.verdict, names(incident)) == (Verdict.SUSPECTED, ["noisy"])
    assert incident.recovered_tick is not None
    assert kept.states["train/job/llama"].health is Health.NOT_OBSERVED


def test_unknown_gpus_and_prices_stay_unknown() -> None:
    job = Training(name="llama", nodes=("n1", "n2"), gpus=None)
    victim = only(run(Scene(ticks=1500, trainings=[job], loads=[NOISY]))).victims[0]
    assert (victim.gpus, victim.gpu_ms_lost, victim.cost_micros) == (None, None, None)
    priceless = only(run(Scene(ticks=1500, trainings=[LLAMA], loads=[NOISY], price_micros=None)))
    assert priceless.victims[0].gpu_ms_lost is not None
    assert (priceless.victims[0].cost_micros, priceless.total_cost_micros) == (None, None)


def test_what_is_simulated_stays_simulated() -> None:
    kept = run(Scene(ticks=1500, trainings=[LLAMA], loads=[NOISY], source=Source.SIMULATED))
    assert only(kept).source is Source.SIMULATED
    assert {episode.source for episode in kept.episodes.values()} == {Source.SIMULATED}
    assert kept.states["train/job/llama"].source is Source.SIMULATED


def test_a_silent_node_is_said_to_be_silent_and_the_job_is_judged_without_it() -> None:
    kept = run(Scene(ticks=1500, trainings=[LLAMA], loads=[NOISY], silent={"n2": (700, 1500)}))
    incident = only(kept)
    assert names(incident) == ["noisy"]
    assert "node n2 is silent" in incident.not_observed


def test_too_few_steps_are_no_baseline_and_not_healthy() -> None:
    kept = run(Scene(ticks=120, trainings=[LLAMA]))
    assert kept.states["train/job/llama"].health is Health.NO_BASELINE


def test_the_same_slowdown_twice_is_two_episodes_against_one_baseline() -> None:
    again = Load(name="noisy-2", node="n1", on=(1500, 1700), tx_per_tick=5_000_000)
    kept = run(Scene(ticks=2000, trainings=[LLAMA], loads=[NOISY, again]))
    first, second = sorted(kept.episodes.values(), key=lambda episode: episode.onset_tick)
    assert [cause.pod for cause in first.causes] == ["noisy"]
    assert [cause.pod for cause in second.causes] == ["noisy-2"]
    assert abs(first.baseline_us - second.baseline_us) <= 5_000


SOFT = Training(
    name="soft", nodes=("n1",), compute_us=400_000, bytes_per_step=220_000, noise_e4=200, gpus=1, queued=True
)
SOFT_RATE = 500_000  # 40 Mbit/s under a port that states 10 Gb/s


def test_two_doses_close_together_each_name_the_pod_even_where_bytes_leave_for_a_queue_at_once() -> None:
    loads = [
        Load(name="dose-4", node="n1", on=(600, 850), tx_per_tick=SOFT_RATE * 4 // 5),
        Load(name="dose-8", node="n1", on=(1050, 1300), tx_per_tick=SOFT_RATE * 8 // 9),
    ]
    kept = run(Scene(ticks=1600, trainings=[SOFT], loads=loads, rate_per_tick=SOFT_RATE))
    assert [names(incident) for incident in kept.standing()] == [["dose-4"], ["dose-8"]]
    assert [incident.verdict for incident in kept.standing()] == [Verdict.CONFIRMED] * 2
    quiet_ms, losses = 444, [incident.victims[0].loss_e4 for incident in kept.standing()]
    assert losses[0] == pytest.approx(10_000 * (1 - quiet_ms / 620), abs=150)
    assert losses[1] == pytest.approx(10_000 * (1 - quiet_ms / 796), abs=150)


def test_the_same_pod_that_returns_is_named_again_and_not_taken_for_a_neighbour_that_was_always_there() -> None:
    first = Load(name="batch", node="n1", on=(600, 850), tx_per_tick=5_000_000)
    again = Load(name="batch", node="n1", on=(1000, 1250), tx_per_tick=5_000_000)
    kept = run(Scene(ticks=1600, trainings=[LLAMA], loads=[first, again]))
    assert [names(incident) for incident in kept.standing()] == [["batch"], ["batch"]]


def test_a_job_that_became_faster_is_compared_with_its_new_pace() -> None:
    slower_at_first = ((0, 500, 100_000), (900, 1200, 150_000))
    job = Training(name="llama", nodes=("n1", "n2"), sleeps=slower_at_first)
    (episode,) = run(Scene(ticks=1500, trainings=[job])).episodes.values()
    assert episode.verdict is Verdict.NOT_FABRIC
    assert abs(episode.baseline_us - 550_000) <= 5_000
    assert abs(episode.loss_e4 - 2143) <= 100


def test_a_job_that_begins_to_hand_over_other_amounts_is_not_called_slow_for_long() -> None:
    kept = run(Scene(ticks=1500, trainings=[Training(name="llama", nodes=("n1",), more_from=(700, 2))]))
    assert {episode.verdict for episode in kept.episodes.values()} <= {Verdict.WITHDRAWN}
    assert all(episode.causes == [] for episode in kept.revisions)
    state = kept.states["train/job/llama"]
    assert (state.health, state.job_epoch) == (Health.HEALTHY, 1)
    assert abs((state.baseline_us or 0) - 800_000) <= 8_000


def test_queue_pairs_count_for_nothing_beside_a_port_that_somebodys_bytes_fill() -> None:
    opener = Load(name="opener", node="n1", on=ON, qps=4096)
    incident = only(run(Scene(ticks=1500, trainings=[LLAMA], loads=[NOISY, opener])))
    assert (incident.kind, names(incident)) == (Kind.BANDWIDTH_SATURATION, ["noisy"])
    assert reasons(incident) == {"opener": "port_full_of_bytes"}


def test_two_containers_of_one_pod_are_one_suspect() -> None:
    half = {"node": "n1", "on": ON, "tx_per_tick": 2_500_000}
    incident = only(
        run(Scene(ticks=1500, trainings=[LLAMA], loads=[Load(name="pair", **half), Load(name="pair", **half)]))
    )
    (cause,) = incident.causes
    assert (cause.pod, cause.share_e4, cause.episode_level) == ("pair", 10_000, 5_000_000)


@pytest.mark.parametrize("noise_e4", [100, 300, 600])
def test_noise_alone_raises_no_alarm_and_leaves_the_baseline_in_its_middle(noise_e4: int) -> None:
    kept = run(Scene(ticks=4000, trainings=[Training(name="noisy", nodes=("n1",), noise_e4=noise_e4)]))
    assert kept.episodes == {}
    assert kept.states["train/job/noisy"].baseline_us == pytest.approx(550_000, rel=0.01)
