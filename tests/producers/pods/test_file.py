"""A file of pods is read as written, and a wrong one says where it is wrong and changes nothing."""

import json
import os
from pathlib import Path

import pytest

from producers.pods.file import PodsFile, read_listing
from producers.pods.yaml_fields import FieldError
from streams.contract.inputs import Container, JobRef, NodeFacts

GOOD = """
nodes:
  - name: node-a
    gpu_model: NVIDIA H100 80GB HBM3
    gpu_hour_price: 2.50
    currency: USD
    labels: {zone: a}
  - name: node-b
pods:
  - uid: uid-1
    namespace: team-llm
    name: pretrain-worker-0
    node: node-a
    since: 2026-11-30T09:00:00Z
    tenant: team-llm
    job: {kind: PyTorchJob, name: pretrain, gpus_total: 16}
    gpus: 8
    qos: Guaranteed
    containers: [{id: "containerd://3f1c", name: main}]
    labels: {app: pretrain, version: 1.10}
  - uid: uid-2
    namespace: data
    name: copy
    node: node-a
    job: {key: data/Workflow/nightly}
"""


def test_every_field_is_read() -> None:
    listing = read_listing(GOOD)
    first, second = listing.pods
    assert (first.pod_uid, first.namespace, first.name, first.node) == (
        "uid-1", "team-llm", "pretrain-worker-0", "node-a",
    )  # fmt: skip
    assert first.since_tick == 17_960_292_000
    assert first.tenant == "team-llm"
    assert first.job == JobRef(key="team-llm/PyTorchJob/pretrain", kind="PyTorchJob", name="pretrain", gpus_total=16)
    assert (first.gpus, first.qos) == (8, "Guaranteed")
    assert first.containers == (Container(container_id="3f1c", name="main"),)
    assert first.labels == {"app": "pretrain", "version": "1.10"}, "text stays as written: 1.10 is no number"
    assert second.job == JobRef(key="data/Workflow/nightly")
    assert (second.gpus, second.tenant, second.containers) == (None, None, ()), "unknown is not zero"
    assert listing.facts == {
        "node-a": NodeFacts(
            gpu_model="NVIDIA H100 80GB HBM3",
            gpu_hour_price_micros=2_500_000,
            currency="USD",
            price_source="pods file",
            labels={"zone": "a"},
        ),
        "node-b": NodeFacts(),
    }


def test_a_time_becomes_its_tick() -> None:
    listing = read_listing("pods: [{uid: u, namespace: n, name: p, node: x, since: '2026-11-30T10:00:00.150+01:00'}]")
    assert listing.pods[0].since_tick == 17_960_292_001


def test_json_is_read_too() -> None:
    document = {"pods": [{"uid": "u", "namespace": "n", "name": "p", "node": "x", "gpus": 2, "labels": {"a": "b"}}]}
    pod = read_listing(json.dumps(document, indent=1)).pods[0]
    assert (pod.pod_uid, pod.gpus, pod.labels) == ("u", 2, {"a": "b"})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("pods:\n  - uid: u\n    namespace: n\n    name: p\n", "line 2: pods[0].node is missing"),
        ("pods:\n- {uid: u, namespace: n, name: p, node: x,\n   gpus: eight}", "line 3: pods[0].gpus 'eight' is not"),
        ("pods:\n- {uid: u, namespace: n, name: p, node: x, gpus: -1}", "line 2: pods[0].gpus '-1' is not"),
        ("pods:\n- {uid: u, namespace: n, name: p, node: x, gpu: 8}", "line 2: pods[0].gpu is not a field; there are"),
        ("pods:\n- {uid: u, uid: v}", "line 2: pods[0].uid is given twice"),
        ("pods:\n- {uid: u, namespace: n, name: p, node: x}\n- {uid: u, namespace: n, name: q, node: x}",
         "line 3: pods[1].uid u is listed twice"),
        ("pods:\n  a: b", "line 2: pods must be a list"),
        ("pods:\n- 7", "line 2: pods[0] must be a mapping"),
        ("pods:\n- {uid: u, namespace: n, name: p, node: x, job: {name: j}}", "line 2: pods[0].job.key is missing"),
        ("pods:\n- {uid: u, namespace: n, name: p, node: x, since: 2026-11-30T09:00:00}", "has no time zone"),
        ("pods:\n- {uid: u, namespace: n, name: p, node: x, since: yesterday}", "'yesterday' is not a time"),
        ("nodes:\n- {name: a, gpu_hour_price: 2}", "line 2: nodes[0].currency is missing"),
        ("nodes:\n- {name: a, gpu_hour_price: NaN, currency: USD}", "'NaN' is not a number of at least 0"),
        ("pods: [\n{uid: u", "line 2: not YAML or JSON"),
        ("pod: []", "line 1: pod is not a field; there are nodes, pods"),
        ("", "the file is empty"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_line_and_field(text: str, complaint: str) -> None:
    with pytest.raises(FieldError) as raised:
        read_listing(text)
    assert complaint in str(raised.value)


def test_a_file_is_read_again_only_when_its_content_changed(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(GOOD)
    source = PodsFile(path)
    first = source.read()
    assert first.listing is not None
    assert len(first.listing.pods) == 2
    assert source.read().listing is None
    path.touch()
    os.utime(path, ns=(1, 1))
    assert source.read().listing is None, "a new time with the same content is no change"
    path.write_text("pods: []")
    assert source.read().listing is not None


def test_a_wrong_file_keeps_the_last_good_list_and_a_repaired_one_is_well_again(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(GOOD)
    source = PodsFile(path)
    source.read()
    path.write_text("pods: nonsense")
    wrong = source.read()
    assert wrong.listing is None
    assert wrong.problem == f"{path}: line 1: pods must be a list"
    assert source.read() == wrong, "it stays wrong until it changes"
    path.unlink()
    assert source.read().problem == f"{path}: No such file or directory"
    path.write_text(GOOD)
    repaired = source.read()
    assert (repaired.listing, repaired.problem) == (None, None), "the same content as the last good one"
    path.write_bytes(b"\xff\xfe")
    assert "can't decode" in str(source.read().problem)
