"""Every real cgroup text names its pod, container, runtime and QoS, or nobody."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.identity.cgroup_text import CgroupIdentity, cgroup_paths, read_cgroup, unified_path
from tests.paths import shared

ID = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"
OTHER = "a55d9ac3b312d8a2627824b6d6dd8af66fbec439bf4e0ec22d6d9945ad337a38"
UID = "2c48913c-b29f-11e7-9350-020968147796"
CASES = json.loads(shared("corpus", "cgroup", "index.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_real_cgroup_text_is_understood_as_the_corpus_says(case: dict[str, object]) -> None:
    identity = read_cgroup(str(case["input"])).identity
    assert (None if identity is None else asdict(identity)) == case["expected"], case["note"]


def test_lines_that_name_two_containers_name_nobody_and_say_so() -> None:
    reading = read_cgroup(f"3:cpu:/kubepods/pod{UID}/{ID}\n2:memory:/kubepods/pod{UID}/{OTHER}")
    assert (reading.identity, reading.ambiguous) == (None, True)


def test_lines_that_name_two_pods_name_nobody() -> None:
    reading = read_cgroup(f"3:cpu:/kubepods/pod{UID}/{ID}\n2:memory:/kubepods/pod{UID[:-1]}7/{ID}")
    assert (reading.identity, reading.ambiguous) == (None, True)


def test_a_line_without_the_container_is_completed_by_one_that_has_it() -> None:
    reading = read_cgroup(f"3:cpu:/kubepods/burstable/pod{UID}\n2:memory:/kubepods/burstable/pod{UID}/{ID}")
    assert reading.identity == CgroupIdentity(pod_uid=UID, container_id=ID, runtime=None, qos="burstable")


def test_mountinfo_never_overrules_the_processes_own_cgroup() -> None:
    forged = f"1543 1542 0:32 /kubepods/pod{UID}/{ID} /sys/fs/cgroup ro - cgroup2 cgroup rw"
    assert read_cgroup(f"0::/system.slice/sshd.service\n{forged}").identity is None


@pytest.mark.parametrize(
    ("path", "container", "runtime"),
    [
        (f"/docker/{ID}", ID, "docker"),
        (f"/system.slice/docker-{ID}.scope/init.scope", ID, "docker"),
        (f"/libpod_parent/libpod-{ID}", ID, "podman"),
        (f"/machine.slice/libpod-{ID}.scope/container", ID, "podman"),
        (f"/docker/{OTHER}/docker/{ID}", ID, "docker"),
        ("/system.slice/sshd.service", None, None),
        ("/docker/shortid", None, None),
    ],
)
def test_a_container_outside_kubernetes_is_known_by_its_own_id(
    path: str, container: str | None, runtime: str | None
) -> None:
    reading = read_cgroup(f"0::{path}\n")
    assert reading.identity is None
    assert (reading.container_id, reading.container_runtime) == (container, runtime)


def test_the_unified_path_is_that_of_the_0_line_without_the_deleted_mark() -> None:
    assert unified_path("2:cpu:/a\n0::/b (deleted)\n") == "/b"
    assert unified_path("2:cpu:/a\n") is None


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    reading = read_cgroup(text)
    assert reading.identity is None or reading.identity.container_id is None or cgroup_paths(text)


@given(
    uid=st.uuids().map(str),
    container=st.text("0123456789abcdef", min_size=64, max_size=64),
    qos=st.sampled_from(["besteffort", "burstable", "guaranteed"]),
    above=st.lists(st.sampled_from(["system.slice", "docker", OTHER, "kubelet", "x.scope"]), max_size=4),
)
def test_both_drivers_give_the_same_pod_whatever_it_is_nested_in(
    uid: str, container: str, qos: str, above: list[str]
) -> None:
    root = "".join(f"/{part}" for part in above)
    head = "kubepods" if qos == "guaranteed" else f"kubepods-{qos}"
    slices = f"{root}/kubepods.slice/{head}.slice/{head}-pod{uid.replace('-', '_')}.slice"
    folders = f"{root}/kubepods" + ("" if qos == "guaranteed" else f"/{qos}") + f"/pod{uid}"
    by_systemd = read_cgroup(f"0::{slices}/cri-containerd-{container}.scope\n").identity
    by_cgroupfs = read_cgroup(f"0::{folders}/{container}\n").identity
    assert by_systemd == CgroupIdentity(pod_uid=uid, container_id=container, runtime="containerd", qos=qos)
    assert by_cgroupfs == CgroupIdentity(pod_uid=uid, container_id=container, runtime=None, qos=qos)
