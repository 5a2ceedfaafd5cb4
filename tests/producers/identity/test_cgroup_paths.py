"""A cgroup id leads to its path while the cgroup lives, and for a bounded while after."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from producers.identity.cgroup_handle import CgroupHandles
from producers.identity.cgroup_paths import CgroupPaths, find_cgroup2
from tests.paths import need

POD = "kubepods.slice/kubepods-pod2c48913c_b29f_11e7_9350_020968147796.slice"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A cgroup2-shaped tree on an ordinary file system: ids are found by a walk."""
    (tmp_path / "cgroup.controllers").touch()
    return tmp_path


@pytest.fixture
def real() -> Iterator[Path]:
    """A folder of our own in the real cgroup2 hierarchy."""
    root = find_cgroup2(Path("/sys/fs/cgroup"))
    need(root is not None and os.access(root, os.W_OK), "no writable cgroup2", "run as root with cgroup2 mounted")
    assert root is not None
    ours = root / f"fabric-sentinel-test-{os.getpid()}"
    ours.mkdir()
    yield ours
    for folder in sorted(ours.rglob("*/"), reverse=True):
        folder.rmdir()
    ours.rmdir()


def make(tree: Path, path: str) -> int:
    (tree / path).mkdir(parents=True)
    return (tree / path).stat().st_ino


def test_the_hierarchy_is_the_root_or_its_unified_folder_or_nowhere(tmp_path: Path) -> None:
    assert find_cgroup2(tmp_path) is None
    assert CgroupPaths(tmp_path).path_of(1, now_s=0.0) is None
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.procs").touch()
    assert find_cgroup2(tmp_path) == tmp_path / "unified"
    (tmp_path / "cgroup.controllers").touch()
    assert find_cgroup2(tmp_path) == tmp_path


def test_an_id_is_found_by_a_walk_where_the_kernel_offers_no_handles(tree: Path) -> None:
    cgroup_id = make(tree, POD)
    assert CgroupPaths(tree).path_of(cgroup_id, now_s=0.0) == f"/{POD}"


def test_a_cgroup_made_after_the_first_look_is_found_at_the_next_walk(tree: Path) -> None:
    paths = CgroupPaths(tree)
    assert paths.path_of(999_999_999_999, now_s=0.0) is None
    cgroup_id = make(tree, "late")
    assert paths.path_of(cgroup_id, now_s=0.5) is None  # a walk is not repeated within the second
    assert paths.path_of(cgroup_id, now_s=1.0) == "/late"


def test_a_dead_cgroup_is_remembered_for_its_time_and_no_longer(tree: Path) -> None:
    paths = CgroupPaths(tree, keep_dead_s=100.0)
    cgroup_id = make(tree, "gone")
    assert paths.path_of(cgroup_id, now_s=0.0) == "/gone"
    paths.sweep(now_s=50.0)
    (tree / "gone").rmdir()
    paths.sweep(now_s=150.0)
    assert paths.path_of(cgroup_id, now_s=150.0) == "/gone"
    paths.sweep(now_s=151.0)
    assert paths.path_of(cgroup_id, now_s=151.0) is None


def test_no_more_than_the_bound_is_remembered_and_the_oldest_go_first(tree: Path) -> None:
    paths = CgroupPaths(tree, max_remembered=3)
    ids = [make(tree, f"c{number}") for number in range(10)]
    paths.path_of(ids[0], now_s=0.0)
    assert len(paths) == 3


@pytest.mark.kernel
def test_the_kernel_gives_a_real_cgroups_path_by_its_id_without_a_walk(real: Path) -> None:
    cgroup_id = make(real, "pod")
    handles = CgroupHandles(real.parent)
    assert handles.works
    assert handles.path_of(cgroup_id) == f"/{real.name}/pod"
    assert handles.path_of(cgroup_id + 1_000_000) is None
    handles.close()


@pytest.mark.kernel
def test_a_real_cgroup_that_was_seen_is_remembered_after_it_is_removed(real: Path) -> None:
    cgroup_id = make(real, "pod")
    paths = CgroupPaths(Path("/sys/fs/cgroup"))
    assert paths.path_of(cgroup_id, now_s=0.0) == f"/{real.name}/pod"
    (real / "pod").rmdir()
    assert paths.path_of(cgroup_id, now_s=0.0) == f"/{real.name}/pod"
    assert CgroupPaths(Path("/sys/fs/cgroup")).path_of(cgroup_id, now_s=0.0) is None


def test_handles_are_not_trusted_on_a_file_system_that_is_no_cgroup2(tree: Path) -> None:
    handles = CgroupHandles(tree)
    assert not handles.works
    handles.close()
