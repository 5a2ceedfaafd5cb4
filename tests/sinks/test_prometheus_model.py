"""What the exporter tells, series by series, for findings and reports in all their orders."""

import itertools
import random

import msgspec
import pytest

from sinks.prometheus import declared, model
from sinks.prometheus.declared import Sample
from sinks.prometheus.model import Model
from streams.contract.findings import Cause, Episode, Health, Incident, JobState, Verdict
from streams.contract.header import Gap, Source
from streams.contract.plumbing import DeadLetter, HealthStatus, PipelineHealth
from streams.contract.ticks import us_of_tick
from tests.front.incidents import RECOVERED, confirmed, nobody, victim

NOW_US = us_of_tick(RECOVERED) + 5_000_000
OPEN = 'incident_open{cluster="lab",kind="qp_icm_exhaustion",verdict="suspected",cause_namespace="inference-team-a",cause_pod="llama-70b-server-84cf2",node="gpu-node-12",device="mlx5_0",port="1",source="kernel"}'  # noqa: E501
ENDED = 'incidents_total{cluster="lab",kind="qp_icm_exhaustion",verdict="confirmed",source="kernel"}'
LOST = 'gpu_lost_seconds_total{cluster="lab",tenant="team-b",cause_namespace="inference-team-a",kind="qp_icm_exhaustion",verdict="confirmed",source="kernel"}'  # noqa: E501
LOST_TO_NOBODY = LOST.replace("inference-team-a", "")


def shown(samples: list[Sample]) -> dict[str, float]:
    """Series as Prometheus writes them, without our prefix."""
    out = {}
    for sample in samples:
        pairs = zip(sample.metric.labels, sample.labels, strict=True)
        labels = ",".join(f'{name}="{value}"' for name, value in pairs)
        series = f"{sample.metric.name}{{{labels}}}".removeprefix("fabric_sentinel_").removesuffix("{}")
        assert series not in out, "told twice in one scrape"
        out[series] = sample.value
    return out


def told(*records: msgspec.Struct, now_us: int = NOW_US) -> dict[str, float]:
    model = Model("lab")
    for offset, record in enumerate(records):
        model.apply(offset, record)
    series = shown(model.samples(now_us, caught_up=True))
    assert series.pop("exporter_caught_up") == 1
    return {name: value for name, value in series.items() if not name.startswith("dead_letters_total")}


def running(revision: int = 3, **changes: object) -> Incident:
    """The incident while it lasts: both victims still slow."""
    fields: dict[str, object] = {
        "revision": revision,
        "verdict": Verdict.SUSPECTED,
        "recovered_tick": None,
        "as_of_tick": RECOVERED - 10,
        "victims": [msgspec.structs.replace(v, recovered_tick=None) for v in confirmed().victims],
    }
    return msgspec.structs.replace(confirmed(), **{**fields, **changes})


def changed(incident: Incident, **changes: object) -> Incident:
    return msgspec.structs.replace(incident, **changes)


def test_an_open_incident_is_one_series_that_goes_when_it_ends() -> None:
    assert told(running()) == {OPEN: 1}
    assert told(running(), confirmed()) == {ENDED: 1, LOST: 2 * 967.68}


def test_an_open_incident_changes_its_verdict_in_place() -> None:
    ambiguous = running(4, verdict=Verdict.AMBIGUOUS)
    assert told(running(), ambiguous) == {OPEN.replace("suspected", "ambiguous"): 1}


def test_each_cause_of_an_incident_is_a_series_and_two_incidents_of_one_place_are_two() -> None:
    second = changed(confirmed().causes[0], pod="other", holder="uid-other")
    both = running(causes=[*confirmed().causes, second])
    assert told(both) == {OPEN: 1, OPEN.replace("llama-70b-server-84cf2", "other"): 1}
    assert told(running(), running(incident_id="another")) == {OPEN: 2}


def test_where_nobody_is_named_the_cause_is_empty_and_a_link_is_a_place() -> None:
    nobody_open = 'incident_open{cluster="lab",kind="not_fabric",verdict="not_fabric",cause_namespace="",cause_pod="",node="",device="",port="",source="simulated"}'  # noqa: E501
    fresh = changed(nobody(), as_of_tick=RECOVERED)
    assert told(fresh) == {nobody_open: 1}
    linked = told(changed(fresh, link_port="gpu-node-12/mlx5_0/1"))
    assert linked == {
        nobody_open.replace('node="",device="",port=""', 'node="gpu-node-12",device="mlx5_0",port="1"'): 1
    }


def test_an_open_incident_that_nobody_tells_of_any_more_goes_after_ten_minutes() -> None:
    last_us = us_of_tick(running().as_of_tick)
    assert told(running(), now_us=last_us + 600_000_000) == {OPEN: 1}
    assert told(running(), now_us=last_us + 600_000_001) == {}


def test_an_older_revision_changes_nothing() -> None:
    assert told(confirmed(), running()) == told(confirmed())
    assert told(confirmed(), confirmed()) == told(confirmed())


def test_a_victim_that_recovered_is_counted_once_however_its_incident_goes_on() -> None:
    first, second = confirmed().victims
    half = running(4, verdict=Verdict.CONFIRMED, victims=[first, msgspec.structs.replace(second, recovered_tick=None)])
    reopened = running(
        12, verdict=Verdict.CONFIRMED, victims=[first, second, victim("third", 100, None, recovered_tick=None)]
    )
    as_open = OPEN.replace("suspected", "confirmed")

    assert told(half) == {as_open: 1, ENDED: 1, LOST: 967.68}
    assert told(half, confirmed()) == {ENDED: 1, LOST: 2 * 967.68}
    assert told(half, confirmed(), reopened) == {as_open: 1, ENDED: 1, LOST: 2 * 967.68}


def test_a_loss_is_not_charged_before_its_incident_is_decided() -> None:
    first, second = confirmed().victims
    waiting = running(4, victims=[first, msgspec.structs.replace(second, recovered_tick=None)])
    assert told(waiting) == {OPEN: 1}
    assert told(waiting, confirmed()) == {ENDED: 1, LOST: 2 * 967.68}


def test_a_reopened_incident_counts_after_a_restart_what_it_counted_before() -> None:
    again = victim("third", 100, None, recovered_tick=None)
    reopened = running(12, verdict=Verdict.CONFIRMED, victims=[*confirmed().victims, again])
    assert told(reopened) == told(confirmed(), reopened)


def test_an_incident_merged_into_another_is_not_open_and_its_loss_is_counted_once() -> None:
    own = changed(confirmed(), incident_id="b", victims=[confirmed().victims[1]])
    merged = changed(own, revision=12, merged_into=confirmed().incident_id)
    whole = changed(confirmed(), revision=12)

    assert told(merged) == {}
    assert told(whole, merged) == {ENDED: 1, LOST: 2 * 967.68}
    assert told(merged, whole) == {ENDED: 1, LOST: 2 * 967.68}
    assert told(own, whole, merged) == {ENDED: 2, LOST: 2 * 967.68}  # It had ended before it was merged


def test_no_counter_ever_goes_down_whatever_is_corrected() -> None:
    corrected = [
        running(1),
        confirmed(),
        running(11),
        changed(confirmed(), revision=12, verdict=Verdict.AMBIGUOUS),
        changed(confirmed(), revision=13, victims=[msgspec.structs.replace(confirmed().victims[0], gpu_ms_lost=1)]),
        changed(confirmed(), revision=14, verdict=Verdict.WITHDRAWN, causes=[], victims=[]),
        changed(confirmed(), revision=15, merged_into="other"),
    ]
    counters = {metric.name for metric in declared.ALL if metric.is_counter}
    model, before = Model("lab"), dict[str, float]()
    for offset, incident in enumerate(corrected):
        model.apply(offset, incident)
        now = shown([s for s in model.samples(NOW_US, caught_up=True) if s.metric.name in counters])
        assert all(now[series] >= value for series, value in before.items())
        before = now
    assert {series: value for series, value in before.items() if value} == {ENDED: 1, LOST: 2 * 967.68}


def cause(namespace: str, share_e4: int) -> Cause:
    return msgspec.structs.replace(confirmed().causes[0], holder=namespace, namespace=namespace, share_e4=share_e4)


@pytest.mark.parametrize(
    ("shares_e4", "parts"),
    [
        ([6000, 3000], [("a", 580.608), ("b", 290.304), ("", 96.768)]),
        ([10_000], [("a", 967.68)]),
        ([9000, 9000], [("a", 870.912), ("b", 96.768)]),
        ([0], [("a", 0.0), ("", 967.68)]),
    ],
)
def test_a_loss_is_split_by_share_and_its_parts_add_up_to_it(
    shares_e4: list[int], parts: list[tuple[str, float]]
) -> None:
    causes = [cause(name, share) for name, share in zip("ab", shares_e4, strict=False)]
    series = told(changed(confirmed(), causes=causes, victims=confirmed().victims[:1]))
    assert series == {ENDED: 1} | {LOST.replace("inference-team-a", name): part for name, part in parts}


@pytest.mark.parametrize("verdict", [Verdict.SUSPECTED, Verdict.AMBIGUOUS, Verdict.NO_BASELINE])
def test_nobody_is_charged_without_a_confirmed_verdict(verdict: Verdict) -> None:
    lost = told(changed(confirmed(), verdict=verdict))
    assert lost == {ENDED.replace("confirmed", verdict): 1, LOST_TO_NOBODY.replace("confirmed", verdict): 2 * 967.68}


def test_a_loss_that_is_not_known_is_not_counted_as_zero() -> None:
    unknown = [msgspec.structs.replace(v, gpu_ms_lost=None) for v in confirmed().victims]
    assert told(changed(confirmed(), victims=unknown)) == {ENDED: 1}


def test_what_is_simulated_says_so_on_every_series() -> None:
    records = [
        changed(confirmed(), source=Source.SIMULATED),
        changed(running(), incident_id="open", source=Source.SIMULATED),
        state(source=Source.SIMULATED),
        episode(source=Source.SIMULATED),
        report(component="simulator", source=Source.SIMULATED),
    ]
    series = told(*records)
    assert len(series) == 11
    assert [one for one in series if 'source="simulated"' not in one] == []


# Jobs

JOB = 'cluster="lab",hpc_job="b/PyTorchJob/gpt",tenant="team-b",source="kernel"'


def state(health: Health = Health.SLOW, tick: int = RECOVERED, **changes: object) -> JobState:
    fields: dict[str, object] = {
        "cluster": "lab",
        "job": "b/PyTorchJob/gpt",
        "job_epoch": 0,
        "tenant": "team-b",
        "source": Source.KERNEL,
        "tick": tick,
        "health": health,
        "gpus": 16,
        "iteration_us": 160_000,
        "baseline_us": 100_000,
        "episode_id": "ep",
    }
    return JobState(**{**fields, **changes})  # type: ignore[arg-type]


def episode(revision: int = 1, loss_e4: int = 3750, **changes: object) -> Episode:
    fields: dict[str, object] = {
        "episode_id": "ep",
        "revision": revision,
        "cluster": "lab",
        "job": "b/PyTorchJob/gpt",
        "job_epoch": 0,
        "source": Source.KERNEL,
        "alarm_tick": RECOVERED - 50,
        "onset_tick": RECOVERED - 60,
        "decided_tick": RECOVERED,
        "as_of_tick": RECOVERED,
        "baseline_us": 100_000,
        "slowed_us": 160_000,
        "iterations": 37,
        "loss_e4": loss_e4,
        "loss_low_e4": loss_e4 - 10,
        "loss_high_e4": loss_e4 + 10,
        "timing_source": "nccl",
    }
    return Episode(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_slow_job_shows_its_health_times_and_loss() -> None:
    assert told(state(), episode()) == {
        f'job_health{{{JOB},health="slow"}}': 1,
        f"job_loss_ratio{{{JOB}}}": 0.375,
        f"job_iteration_seconds{{{JOB}}}": 0.16,
        f"job_baseline_seconds{{{JOB}}}": 0.1,
        f"job_gpus{{{JOB}}}": 16,
    }


def test_a_jobs_loss_is_that_of_its_open_episodes_highest_revision() -> None:
    loss = f"job_loss_ratio{{{JOB}}}"
    assert told(episode(2, 4000), episode(1, 3000), state())[loss] == 0.4
    assert told(episode(), state(Health.HEALTHY, episode_id=None))[loss] == 0
    assert loss not in told(state())
    assert loss not in told(state(episode_id="other"), episode())
    assert loss not in told(state(Health.NO_BASELINE), episode())
    assert loss not in told(state(Health.NOT_OBSERVED), episode())


def test_what_is_not_known_of_a_job_is_absent_not_zero() -> None:
    bare = state(Health.NO_BASELINE, gpus=None, iteration_us=None, baseline_us=None, tenant=None)
    assert told(bare) == {f'job_health{{{JOB},health="no_baseline"}}'.replace("team-b", ""): 1}


def test_a_job_shows_only_its_newest_health_and_goes_two_minutes_after_its_last_word() -> None:
    healthy, slow = f'job_health{{{JOB},health="healthy"}}', f'job_health{{{JOB},health="slow"}}'
    series = told(state(Health.HEALTHY, RECOVERED + 50), state(Health.SLOW, RECOVERED))
    assert healthy in series
    assert slow not in series
    assert told(state(), now_us=us_of_tick(RECOVERED) + 120_000_000)[slow] == 1
    assert told(state(), now_us=us_of_tick(RECOVERED) + 120_000_001) == {}


# Components


def component(name: str = "agent", instance: str = "node-a", source: str = "kernel") -> str:
    return f'cluster="lab",component="{name}",component_instance="{instance}",source="{source}"'


def report(**changes: object) -> PipelineHealth:
    fields: dict[str, object] = {
        "cluster": "lab",
        "component": "agent",
        "instance": "node-a",
        "epoch": "e",
        "us": NOW_US,
        "source": Source.KERNEL,
        "status": HealthStatus.OK,
    }
    return PipelineHealth(**{**fields, **changes})  # type: ignore[arg-type]


def basics(labels: str, up: int, status: str, seen_us: int = NOW_US) -> dict[str, float]:
    return {
        f"pipeline_up{{{labels}}}": up,
        f'pipeline_status{{{labels},status="{status}"}}': 1,
        f"pipeline_last_seen_timestamp_seconds{{{labels}}}": seen_us / 1e6,
    }


def test_a_component_shows_what_it_cannot_see_and_what_it_lost() -> None:
    labels = component()
    gaps = [Gap(source="rdma", what=what, reason="no such symbol") for what in ("a", "b")]
    full = report(
        status=HealthStatus.DEGRADED,
        gaps=[*gaps, Gap(source="nccl", what="NCCL calls", reason="switched off")],
        probes_wanted=21,
        probes_attached=19,
        counts={"lost_rdma": 3, "dropped": 0, "flushes": 1000, "lag": 12},
    )
    assert told(full) == basics(labels, 1, "degraded") | {
        f'pipeline_gaps{{{labels},gap_source="rdma"}}': 2,
        f'pipeline_gaps{{{labels},gap_source="nccl"}}': 1,
        f'pipeline_lost_total{{{labels},what="lost_rdma"}}': 3,
        f'pipeline_lost_total{{{labels},what="dropped"}}': 0,
        f"pipeline_lag_messages{{{labels}}}": 12,
        f"pipeline_probes_wanted{{{labels}}}": 21,
        f"pipeline_probes_attached{{{labels}}}": 19,
    }


@pytest.mark.parametrize(
    ("age_us", "status", "expected"),
    [
        (0, HealthStatus.OK, (1, "ok")),
        (0, HealthStatus.UNKNOWN, (1, "unknown")),
        (0, HealthStatus.DOWN, (0, "down")),
        (30_000_000, HealthStatus.OK, (1, "ok")),
        (30_000_001, HealthStatus.OK, (0, "silent")),
        (600_000_000, HealthStatus.OK, (0, "silent")),
    ],
)
def test_a_component_is_up_while_it_says_so_and_was_heard(
    age_us: int, status: HealthStatus, expected: tuple[int, str]
) -> None:
    seen_us = NOW_US - age_us
    assert told(report(us=seen_us, status=status, counts={})) == basics(component(), *expected, seen_us)


def test_a_component_that_is_silent_for_ten_minutes_is_forgotten() -> None:
    assert told(report(us=NOW_US - 600_000_001)) == {}


def test_the_last_report_holds_though_its_clock_was_set_back() -> None:
    ahead, corrected = report(us=NOW_US + 3_600_000_000, counts={"dropped": 1}), report(counts={"dropped": 2})
    assert told(ahead, corrected) == told(corrected)


def test_process_ids_are_in_no_label_and_a_restart_goes_on_under_the_same_one() -> None:
    dead = report(component="stream", instance="host-1:4711", us=NOW_US - 40_000_000, counts={"dropped": 9})
    living = report(component="stream", instance="host-1:4712", counts={"dropped": 1})
    labels = component("stream", "host-1")
    lost = {f'pipeline_lost_total{{{labels},what="dropped"}}': 1.0}
    assert told(dead, living) == basics(labels, 1, "ok") | lost
    assert told(report(component="pods", instance="host-1/17")) == basics(component("pods", "host-1"), 1, "ok")


def test_two_living_instances_on_one_host_are_added_and_the_worst_is_told() -> None:
    one = report(instance="h:1", counts={"lag": 5, "dropped": 2})
    other = report(instance="h:2", counts={"lag": 7, "dropped": 3}, status=HealthStatus.DEGRADED)
    labels = component(instance="h")
    assert told(one, other) == basics(labels, 1, "degraded") | {
        f"pipeline_lag_messages{{{labels}}}": 12,
        f'pipeline_lost_total{{{labels},what="dropped"}}': 5,
    }


# All together


def test_dead_letters_are_counted_by_topic_and_component_each_once() -> None:
    letter = DeadLetter(component="stream", topic="nic-counters", partition=3, offset=9, reason="garbage")
    model = Model("lab")
    for offset in (7, 8, 7, 8, 9):
        model.apply(offset, letter)
    model.apply(10, msgspec.structs.replace(letter, topic="node-pods"))
    series = shown(model.samples(NOW_US, caught_up=True))
    assert len(series) == 1 + 9 * 3  # Every topic that is read, and who reads: counters begin at 0, not at 1
    assert {name: value for name, value in series.items() if value} == {
        "exporter_caught_up": 1,
        'dead_letters_total{cluster="lab",topic="nic-counters",component="stream"}': 3,
        'dead_letters_total{cluster="lab",topic="node-pods",component="stream"}': 1,
    }


def test_before_the_exporter_has_caught_up_it_tells_only_that() -> None:
    model = Model("lab")
    model.apply(0, confirmed())
    assert shown(model.samples(NOW_US, caught_up=False)) == {"exporter_caught_up": 0}


def everything() -> list[msgspec.Struct]:
    return [
        running(1),
        running(2, incident_id="b", victims=running().victims[1:]),
        changed(confirmed(), incident_id="b", revision=12, victims=[confirmed().victims[1]], merged_into="a"),
        confirmed(),
        running(1, incident_id="open"),
        episode(1, 3000),
        episode(2),
        state(Health.HEALTHY, RECOVERED - 50),
        state(),
        report(us=NOW_US - 5_000_000, counts={"dropped": 1}),
        report(counts={"dropped": 2}),
    ]


def test_a_restart_reads_compacted_incidents_and_tells_the_same() -> None:
    newest: dict[tuple[object, ...], msgspec.Struct] = {}
    for record in everything():
        newest[(type(record), getattr(record, "incident_id", ""))] = record
    assert told(*everything()) == told(*newest.values()) == told(*everything(), *everything())


def test_topics_may_arrive_in_any_interleaving() -> None:
    records = everything()
    topics = [list(group) for _, group in itertools.groupby(records, type)]
    for seed in range(30):
        order = [index for index, topic in enumerate(topics) for _ in topic]
        random.Random(seed).shuffle(order)
        queues = [iter(topic) for topic in topics]
        assert told(*(next(queues[index]) for index in order)) == told(*records)


def test_what_the_model_forgets_was_in_no_sample_any_more() -> None:
    model, kept = Model("lab"), Model("lab")
    later_us = NOW_US + 90_000_000
    for offset, record in enumerate([*everything(), state(tick=RECOVERED + 900, job="young")]):
        for each in (model, kept):
            each.apply(offset, record)
    model.forget(later_us)
    assert model.samples(later_us, caught_up=True) == kept.samples(later_us, caught_up=True)


def test_jobs_that_somebody_invents_are_bounded_and_what_is_left_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MOST_SERIES", 3)
    series = told(*(state(job=f"{number}{'x' * 500}") for number in range(5)))
    assert len([name for name in series if name.startswith("job_health")]) == 3
    assert series['exporter_dropped_series{metric="fabric_sentinel_job_health"}'] == 2
    assert max(map(len, series)) < 400


def test_every_name_is_a_prometheus_name_with_a_base_unit_and_no_label_of_prometheus_own() -> None:
    for metric in declared.ALL:
        assert metric.name.startswith("fabric_sentinel_")
        assert metric.name.endswith("_total") == metric.is_counter
        assert not {"job", "instance", "pid", "uid", "pod_uid"} & set(metric.labels)
        assert metric.meaning.endswith(".")
