"""Real kernel, real RDMA, real libnccl, real Kafka: who slowed the victim, by how much, and when nobody did."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.services.kafka import Kafka
from tests.vm.conftest import Boot
from tests.vm.victim_log import loss, median_step_s, read_steps, scene
from tests.vm.whole_line import Line, run_line

pytestmark = [pytest.mark.vm, pytest.mark.services, pytest.mark.timeout(2400)]

VICTIM, AGGRESSOR = "11111111-aaaa-4aaa-8aaa-111111111111", "22222222-bbbb-4bbb-8bbb-222222222222"
CHURN = {"c": "33333333-cccc-4ccc-8ccc-333333333333", "d": "44444444-dddd-4ddd-8ddd-444444444444"}
DOSES = ["dose-2", "dose-4"]
HARMLESS = 0.06  # longer steps at the most while the flood shares nothing with the victim but emulated CPUs
CLOSE = 0.05  # a stated loss is this near to what the victim measured
STARVED = 0.15  # 6 % missed beside one other build, 24 % beside three
MARGIN_S = 4.0  # a flood's own start and end: connecting, filling and draining the queue


@pytest.fixture(scope="module")
def line(request: pytest.FixtureRequest, lab: Path) -> Line:
    """One run for all tests; FABRIC_VM_EARLIER=1 asserts again on what the run before left.

    A run on a machine too busy to emulate ten samples a second (measured by the agent, whatever was found) is played
    once more: there the victim's own steps jump by half, and nobody could say what the flood did.
    """
    earlier = Line(folder=lab / "runs" / "line", dsn=f"chdb://{lab / 'runs' / 'line-host' / 'clickhouse'}")
    if os.environ.get("FABRIC_VM_EARLIER"):
        return earlier
    boot: Boot = request.getfixturevalue("boot")
    for attempt in range(2):
        shutil.rmtree(lab / "runs" / "line-host", ignore_errors=True)
        kafka = Kafka(lab / "runs" / "line-host" / "kafka")
        kafka.start()
        try:
            played = run_line(kafka, boot, lab / "runs" / "line-host")
        finally:
            kafka.stop()
        missed = played.missed_ticks()
        print(f"\nrun {attempt + 1}: the agent missed {missed:.1%} of its ticks")
        if missed <= STARVED:
            break
    return played


def baseline_before_s(line: Line, name: str) -> float:
    """The victim's usual step in the quiet 15 s before a scene: the median, for a stumble is not what is usual."""
    start_s = scene(line.folder, name).start_s
    return median_step_s(read_steps(line.folder), start_s - 15, start_s)


def own_loss(line: Line, name: str) -> float:
    """What a scene cost the victim by its own log, its first and last seconds left out."""
    one = scene(line.folder, name)
    return loss(
        read_steps(line.folder),
        one.start_s + MARGIN_S,
        one.end_s - MARGIN_S,
        baseline_s=baseline_before_s(line, name),
    )


def incidents_of(line: Line, name: str) -> list[dict[str, Any]]:
    """The incidents with this victim whose onset lies in a scene, its ramp included."""
    one = scene(line.folder, name)
    return [
        incident
        for incident in line.incidents()
        if one.start_s - 2 <= incident["onset_tick"] / 10 <= one.end_s
        and any(victim["job"] == "team-llm/PyTorchJob/pretrain" for victim in incident["victims"])
    ]


def seconds(rfc3339: str) -> float:
    return datetime.fromisoformat(rfc3339).timestamp()


@pytest.mark.parametrize("name", DOSES)
def test_a_dose_costs_the_victim_a_fifth_to_three_fifths_by_its_own_log(line: Line, name: str) -> None:
    assert 0.20 <= own_loss(line, name) <= 0.60


def test_the_same_flood_costs_next_to_nothing_where_nothing_is_shared(line: Line) -> None:
    one = scene(line.folder, "harmless")
    steps = read_steps(line.folder)
    before_s = median_step_s(steps, one.start_s - 15, one.start_s)
    assert median_step_s(steps, one.start_s + MARGIN_S, one.end_s - MARGIN_S) <= (1 + HARMLESS) * before_s


@pytest.mark.parametrize("name", DOSES)
def test_each_dose_names_the_aggressors_pod_node_and_port(line: Line, name: str) -> None:
    (incident,) = incidents_of(line, name)
    assert incident["verdict"] == "confirmed"
    (cause,) = incident["causes"]
    assert {key: cause[key] for key in ("namespace", "pod", "pod_uid", "node", "device", "port")} == {
        "namespace": "team-etl",
        "pod": "copier-0",
        "pod_uid": AGGRESSOR,
        "node": "node-a",
        "device": "rxe0",
        "port": 1,
    }


@pytest.mark.parametrize("name", DOSES)
def test_the_stated_loss_is_what_the_victim_measured(line: Line, name: str) -> None:
    (incident,) = incidents_of(line, name)
    (victim,) = incident["victims"]
    measured = loss(
        read_steps(line.folder),
        seconds(incident["onset"]),
        seconds(incident["recovered"]),
        baseline_s=baseline_before_s(line, name),
    )
    assert victim["loss"] == pytest.approx(measured, abs=CLOSE)
    assert victim["loss"] == pytest.approx(own_loss(line, name), abs=CLOSE)


def test_the_harmless_flood_is_blamed_for_nothing(line: Line) -> None:
    # A machine with other work on its two cores can make the emulated victim stumble by itself: that is told, unnamed.
    assert [incident["causes"] for incident in incidents_of(line, "harmless") if incident["causes"]] == []


def test_a_victim_that_slows_itself_is_reported_and_nobody_is_named(line: Line) -> None:
    found = incidents_of(line, "slow")
    assert [(incident["verdict"], incident["causes"]) for incident in found] in (
        [("not_fabric", [])],
        [("unexplained", [])],
    )
    assert found[0]["victims"][0]["loss"] == pytest.approx(own_loss(line, "slow"), abs=CLOSE)


@pytest.mark.parametrize("truth", ["c", "d"])
def test_counts_in_clickhouse_equal_the_churning_pods_own(line: Line, truth: str) -> None:
    own = json.loads((line.folder / f"truth-{truth}").read_text())
    totals = feature_totals(line, CHURN[truth])
    assert {device for device, _ in totals} == {own["device"]}
    for begun, ended in (("qp_created", "qp_destroyed"), ("cq_created", "cq_destroyed")):
        assert totals[own["device"], begun] == own[begun]
        assert totals[own["device"], ended] == own[begun]  # by its end all are gone, also of the one that was killed
    assert totals[own["device"], "mr_registered"] == own["mr_registered"]
    assert totals[own["device"], "mr_deregistered"] == own["mr_registered"]
    levels = feature_peaks(line, CHURN[truth])
    for level in ("qp_live", "mr_live", "mr_live_bytes", "cq_live"):
        assert levels[own["device"], level] >= own[level]


@pytest.mark.parametrize("device", ["rxe0", "rxe1"])
def test_the_victims_and_the_aggressors_queue_pairs_are_counted_to_the_unit(line: Line, device: str) -> None:
    victim, aggressor = feature_totals(line, VICTIM), feature_totals(line, AGGRESSOR)
    assert (victim[device, "qp_created"], victim[device, "mr_registered"]) == (1, 1)
    assert aggressor[device, "qp_created"] == 2 + 4 + 4 + 4
    assert aggressor[device, "qp_destroyed"] == 2 + 4 + 4 + 4
    assert aggressor[device, "mr_registered"] == 2 + 4 + 4 + 4


def test_every_step_called_the_real_libnccl_once_and_failed(line: Line) -> None:
    (row,) = line.sql(
        "SELECT sum(calls) AS calls, sum(failed) AS failed FROM nccl_calls_current WHERE op = 'all_reduce'"
    )
    steps = len(read_steps(line.folder))
    assert (int(row["calls"]), int(row["failed"])) == (steps, steps)


def test_nothing_became_a_dead_letter_and_no_event_was_lost(line: Line) -> None:
    (letters,) = line.sql("SELECT count() AS letters FROM dead_letters_current")
    assert int(letters["letters"]) == 0


def feature_totals(line: Line, pod_uid: str) -> dict[tuple[str, str], int]:
    return _features(line, pod_uid, "sum", "feature NOT LIKE '%live%'")


def feature_peaks(line: Line, pod_uid: str) -> dict[tuple[str, str], int]:
    return _features(line, pod_uid, "max", "feature LIKE '%live%'")


def _features(line: Line, pod_uid: str, aggregate: str, condition: str) -> dict[tuple[str, str], int]:
    rows = line.sql(
        f"SELECT device, feature, ifNull({aggregate}(value), 0) AS amount FROM holder_samples"  # noqa: S608 (our own constants)
        f" WHERE holder = '{pod_uid}' AND {condition} GROUP BY device, feature"
    )
    return {(row["device"], row["feature"]): int(row["amount"]) for row in rows}
