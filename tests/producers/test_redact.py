"""A redacted report holds no id, and says the same thing twice in the same way."""

import json

from producers.identity.cgroup_text import read_cgroup
from producers.redact import Redactor
from tests.paths import shared

UID = "2c48913c-b29f-11e7-9350-020968147796"
ID = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"


def test_an_id_has_one_stand_in_in_either_spelling() -> None:
    redactor = Redactor()
    text = f"/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope is pod {UID}"
    assert redactor.text(text) == "/kubepods-podpod-1.slice/cri-containerd-container-1.scope is pod pod-1"


def test_names_are_numbered_by_kind() -> None:
    redactor = Redactor()
    names = [redactor.name("tenant", "acme"), redactor.name("node", "n1"), redactor.name("tenant", "umbrella")]
    assert names == ["tenant-1", "node-1", "tenant-2"]
    assert redactor.name("tenant", "acme") == "tenant-1"


def test_numbers_keys_and_structure_stay() -> None:
    assert Redactor().json({"pod_uid": UID, "n": [1, None, True, UID]}) == {
        "pod_uid": "pod-1",
        "n": [1, None, True, "pod-1"],
    }


def test_no_id_of_any_real_cgroup_survives() -> None:
    redactor = Redactor()
    for case in json.loads(shared("corpus", "cgroup", "index.json").read_text()):
        identity = read_cgroup(case["input"]).identity
        redacted = redactor.text(case["input"])
        for value in (identity.pod_uid, identity.container_id) if identity else ():
            if value is not None and len(value) >= 32:
                assert value not in redacted
                assert value.replace("-", "_") not in redacted
