"""Incidents are a function of the set of episodes: any order and any repetition ends in the same ones."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from streams.contract.findings import Cause, Episode, Incident, Kind, Verdict
from streams.contract.ids import episode_id
from streams.core.core import Correlate, CorrelateSettings

START = 17_900_000_000


def cause(pod: str, *, node: str = "n1", share_e4: int = 10_000) -> Cause:
    return Cause(
        holder=pod, pod=pod, namespace="ns", node=node, device="d", port=1, share_e4=share_e4, feature="tx_bytes"
    )


def episode(job: str, revision: int, **fields: object) -> Episode:
    known: dict[str, object] = {
        "episode_id": episode_id(cluster="c", job=job, job_epoch=0, alarm_tick=START + 10),
        "revision": revision,
        "cluster": "c",
        "job": job,
        "job_epoch": 0,
        "verdict": Verdict.SUSPECTED,
        "kind": Kind.BANDWIDTH_SATURATION,
        "alarm_tick": START + 10,
        "onset_tick": START,
        "decided_tick": START + 10,
        "as_of_tick": START + 10 + 50 * revision,
        "baseline_us": 100,
        "slowed_us": 200,
        "iterations": 10,
        "loss_e4": 5000,
        "loss_low_e4": 4900,
        "loss_high_e4": 5100,
        "timing_source": "enqueue",
        "nodes": ["n1"],
        "gpus": 8,
        "gpu_ms_lost": 3_600_000,
        "gpu_hour_price_micros": 2_000_000,
        "currency": "USD",
    }
    return Episode(**(known | fields))  # type: ignore[arg-type]


def last(episodes: list[Episode]) -> dict[str, Incident]:
    """The highest revision of each incident, as every store keeps it."""
    correlate, kept = Correlate(CorrelateSettings()), {}
    for one in episodes:
        for incident in correlate.apply(one):
            known = kept.get(incident.incident_id)
            assert known is None or known.revision < incident.revision or known == incident
            kept[incident.incident_id] = incident
    return kept


def standing(kept: dict[str, Incident]) -> list[Incident]:
    return [incident for incident in kept.values() if incident.merged_into is None]


STORY = [
    *(episode("a", revision, causes=[cause("p")]) for revision in (1, 2)),
    *(episode("b", revision, causes=[cause("p")]) for revision in (1, 2, 3)),
    episode("c", 1, causes=[cause("q")], onset_tick=START + 5),
    episode("c", 2, verdict=Verdict.UNEXPLAINED, kind=Kind.UNEXPLAINED, causes=[]),
    episode("d", 1, verdict=Verdict.AMBIGUOUS, causes=[cause("p", share_e4=5000), cause("q", share_e4=5000)]),
    episode("d", 2, causes=[cause("q")], recovered_tick=START + 100, verdict=Verdict.CONFIRMED),
    episode("far", 1, nodes=["n9"], causes=[cause("p", node="n9")]),
]


@given(st.integers(0, 2**32))
def test_any_order_with_repetitions_ends_in_the_same_incidents(seed: int) -> None:
    chance = random.Random(seed)
    shuffled = chance.sample(STORY, len(STORY)) + chance.choices(STORY, k=3)
    encode = msgspec.msgpack.encode
    assert {key: encode(value) for key, value in last(shuffled).items()} == {
        key: encode(value) for key, value in last(STORY).items()
    }


def test_one_cause_with_two_victims_is_one_incident_that_costs_their_sum() -> None:
    (incident,) = standing(last([episode("a", 1, causes=[cause("p")]), episode("b", 1, causes=[cause("p")])]))
    assert [victim.job for victim in incident.victims] in (["a", "b"], ["b", "a"])
    assert [victim.cost_micros for victim in incident.victims] == [2_000_000, 2_000_000]
    assert (incident.total_cost_micros, incident.currency) == (4_000_000, "USD")


def test_one_unpriced_victim_leaves_the_total_unknown() -> None:
    unpriced = episode("b", 1, causes=[cause("p")], gpu_hour_price_micros=None)
    (incident,) = standing(last([episode("a", 1, causes=[cause("p")]), unpriced]))
    assert (incident.total_cost_micros, incident.currency) == (None, None)


def test_the_same_pod_name_on_other_nodes_or_at_other_times_is_another_incident() -> None:
    elsewhere = episode("b", 1, causes=[cause("p", node="n2")], nodes=["n2"])
    later = episode(
        "c", 1, causes=[cause("p")], alarm_tick=START + 9000, onset_tick=START + 8990, as_of_tick=START + 9050
    )
    assert len(standing(last([episode("a", 1, causes=[cause("p")]), elsewhere, later]))) == 3


def test_episodes_without_a_cause_stay_apart() -> None:
    nobody = {"verdict": Verdict.UNEXPLAINED, "causes": []}
    assert len(standing(last([episode("a", 1, **nobody), episode("b", 1, **nobody)]))) == 2


def test_a_confirmed_member_confirms_the_incident_and_a_named_pod_is_not_ruled_out_beside_it() -> None:
    confirmed = episode("b", 2, verdict=Verdict.CONFIRMED, causes=[cause("p")], decided_tick=START + 77)
    (incident,) = standing(last([episode("a", 1, causes=[cause("p")]), confirmed]))
    assert (incident.verdict, incident.decided_tick) == (Verdict.CONFIRMED, START + 77)
    assert incident.recommendation == "move ns/p off port d of n1, or cap its egress"


def test_a_snapshot_in_between_changes_nothing() -> None:
    expected = last(STORY)
    correlate, kept = Correlate(CorrelateSettings()), {}
    for one in STORY:
        correlate = Correlate.restore(CorrelateSettings(), correlate.snapshot())
        kept |= {incident.incident_id: incident for incident in correlate.apply(one)}
    assert kept == expected


def test_two_causes_on_one_node_at_one_time_are_two_incidents() -> None:
    assert len(standing(last([episode("a", 1, causes=[cause("p")]), episode("b", 1, causes=[cause("q")])]))) == 2
