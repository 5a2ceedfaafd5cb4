"""The detector finds what the simulated story's truth states: one culprit, its victims, and nobody for the rest."""

import pytest
from aiokafka.partitioner import murmur2

from producers.simulate.story import records
from producers.simulate.truth import truth
from streams.contract.findings import Incident, Verdict
from streams.core.core import Core, CoreSettings

START = 17_000_000_000
PARTITIONS = 4


def incidents(seed: int, seconds: int) -> list[Incident]:
    """The last revision of each incident that was not merged into another."""
    core = Core(CoreSettings(), PARTITIONS)
    found: dict[str, Incident] = {}
    for one in records(seed, START, seconds, partitions=PARTITIONS):
        partition = one.partition
        if partition is None:
            partition = (murmur2(one.key.encode()) & 0x7FFFFFFF) % PARTITIONS
        for finding in core.apply(one.topic.name, partition, one.record):
            if isinstance(finding, Incident):
                found[finding.incident_id] = finding
    return [incident for incident in found.values() if incident.merged_into is None]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_culprit_is_named_with_its_victims_and_nobody_else_is(seed: int) -> None:
    story = truth(seed, START)
    found = incidents(seed, 88)
    named = [incident for incident in found if incident.causes]
    assert len(named) == 1
    (incident,) = named
    assert incident.verdict is Verdict.CONFIRMED
    assert [(cause.pod_uid, cause.node, cause.device) for cause in incident.causes] == [
        (story.pod_uid, story.node, story.device)
    ]
    assert {victim.job for victim in incident.victims} == set(story.losses_e4)
    for victim in incident.victims:
        assert victim.loss_e4 == pytest.approx(story.losses_e4[victim.job], abs=200)
    assert abs(incident.onset_tick - story.onset_tick) <= 5
    assert incident.recovered_tick is not None
    assert abs(incident.recovered_tick - story.end_tick) <= 10


def test_a_job_that_slows_itself_is_reported_and_nobody_is_named() -> None:
    story = truth(1, START)
    own = [
        incident
        for incident in incidents(1, 88)
        if any(victim.job == story.self_slow_job for victim in incident.victims)
    ]
    assert [(incident.verdict, incident.causes) for incident in own] == [(Verdict.NOT_FABRIC, [])]


def test_before_the_culprit_begins_nothing_is_found() -> None:
    assert incidents(1, 38) == []
