"""The holder of an event is its pod, else its container, else its process, and never somebody else's."""

import shutil
import subprocess
from pathlib import Path

import pytest

from producers.identity.cgroup_paths import find_cgroup2
from producers.identity.holders import KEEP_UNUSED_S, Holder, Holders
from tests.paths import need
from tests.producers.identity.procs import make_process

UID = "2c48913c-b29f-11e7-9350-020968147796"
OTHER_UID = "8712f785-1a3e-41ec-a00b-e2dcc77431cb"
ID = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"
OTHER_ID = "a55d9ac3b312d8a2627824b6d6dd8af66fbec439bf4e0ec22d6d9945ad337a38"
POD_PATH = f"/kubepods/burstable/pod{UID}/{ID}"
OTHER_PATH = f"/kubepods/burstable/pod{OTHER_UID}/{OTHER_ID}"


class Machine:
    """A /proc and a cgroup2 tree that a test changes, and a clock that it moves."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups, self.now_s = root / "proc", root / "cgroup", 0.0
        self.proc.mkdir()
        self.cgroups.mkdir()
        (self.cgroups / "cgroup.controllers").touch()
        self.holders = self.new_holders()

    def new_holders(self, max_known: int = 100) -> Holders:
        return Holders(proc=self.proc, cgroup_root=self.cgroups, clock_s=lambda: self.now_s, max_known=max_known)

    def cgroup(self, path: str) -> int:
        folder = self.cgroups / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        return folder.stat().st_ino

    def exit(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def pod(pid: int, comm: str, start_ticks: int | None = 100) -> Holder:
    return Holder(
        kind="pod",
        pod_uid=UID,
        container_id=ID,
        runtime=None,
        qos="burstable",
        pid=pid,
        comm=comm,
        start_ticks=start_ticks,
    )


def test_a_process_in_a_pods_cgroup_is_held_by_the_pod(machine: Machine) -> None:
    cgroup_id = machine.cgroup(POD_PATH)
    make_process(machine.proc, 7, cgroup=f"0::{POD_PATH}\n", environ=b"SLURM_JOB_ID=1\0")
    assert machine.holders.resolve(7, cgroup_id) == pod(7, "train")
    process = machine.holders.process(7, cgroup_id)
    assert process is not None
    assert process.environment == {"SLURM_JOB_ID": "1"}


def test_a_process_that_is_already_gone_is_resolved_through_its_cgroup_id(machine: Machine) -> None:
    cgroup_id = machine.cgroup(POD_PATH)
    assert machine.holders.resolve(7, cgroup_id, "short") == pod(7, "short", start_ticks=None)
    assert machine.holders.process(7, cgroup_id) is None


def test_process_and_cgroup_both_gone_are_still_known(machine: Machine) -> None:
    cgroup_id = machine.cgroup(POD_PATH)
    make_process(machine.proc, 7, cgroup=f"0::{POD_PATH}\n")
    machine.holders.resolve(7, cgroup_id)
    machine.exit(7)
    shutil.rmtree(machine.cgroups / "kubepods")
    machine.now_s = 1800.0
    assert machine.holders.resolve(7, cgroup_id) == pod(7, "train")
    assert machine.holders.resolve(8, cgroup_id, "sibling") == pod(8, "sibling", start_ticks=None)


def test_the_dead_are_forgotten_after_their_time(machine: Machine) -> None:
    cgroup_id = machine.cgroup(POD_PATH)
    make_process(machine.proc, 7, cgroup=f"0::{POD_PATH}\n")
    machine.holders.resolve(7, cgroup_id)
    machine.exit(7)
    shutil.rmtree(machine.cgroups / "kubepods")
    machine.now_s = KEEP_UNUSED_S + 1
    machine.holders.resolve(1, 0)
    assert machine.holders.resolve(7, cgroup_id).kind == "process"


def test_a_reused_pid_never_lends_its_pod_to_anothers_event(machine: Machine) -> None:
    host_id = machine.cgroup("/system.slice/sshd.service")
    make_process(machine.proc, 7, comm="stranger", cgroup=f"0::{OTHER_PATH}\n")
    holder = machine.holders.resolve(7, host_id, "sshd")
    assert (holder.kind, holder.pod_uid, holder.comm, holder.start_ticks) == ("process", None, "sshd", None)


def test_a_pid_that_becomes_another_process_of_the_same_cgroup_is_looked_at_again(machine: Machine) -> None:
    cgroup_id = machine.cgroup("/system.slice/slurm.scope")
    make_process(machine.proc, 7, comm="old", cgroup="0::/system.slice/slurm.scope\n", start_ticks=100)
    assert machine.holders.resolve(7, cgroup_id).comm == "old"
    make_process(machine.proc, 7, comm="new", cgroup="0::/system.slice/slurm.scope\n", start_ticks=200)
    machine.now_s = 6.0
    holder = machine.holders.resolve(7, cgroup_id)
    assert (holder.comm, holder.start_ticks) == ("new", 200)


def test_on_a_cgroup_v1_host_the_processes_own_text_names_the_pod(tmp_path: Path) -> None:
    (tmp_path / "cgroup").mkdir()
    make_process(tmp_path / "proc", 7, cgroup=f"3:cpu:{POD_PATH}\n1:name=systemd:{POD_PATH}\n")
    holders = Holders(proc=tmp_path / "proc", cgroup_root=tmp_path / "cgroup", clock_s=lambda: 0.0)
    assert holders.resolve(7, 1) == pod(7, "train")


def test_on_a_hybrid_host_where_cgroup2_knows_no_pods_the_v1_lines_do(machine: Machine) -> None:
    root_id = machine.cgroup("/")
    make_process(machine.proc, 7, cgroup=f"3:cpu:{POD_PATH}\n0::/\n")
    assert machine.holders.resolve(7, root_id) == pod(7, "train")


def test_an_agent_in_its_own_cgroup_namespace_still_knows_the_process(machine: Machine) -> None:
    cgroup_id = machine.cgroup(POD_PATH)
    make_process(machine.proc, 7, cgroup=f"0::/../../pod{UID}/{ID}\n")
    assert machine.holders.resolve(7, cgroup_id) == pod(7, "train")


def test_a_container_outside_kubernetes_is_its_own_holder(machine: Machine) -> None:
    cgroup_id = machine.cgroup(f"/system.slice/docker-{ID}.scope")
    holder = machine.holders.resolve(7, cgroup_id, "python")
    assert (holder.kind, holder.container_id, holder.runtime, holder.pod_uid) == ("container", ID, "docker", None)


def test_lines_that_disagree_name_no_pod_and_are_counted(tmp_path: Path) -> None:
    (tmp_path / "cgroup").mkdir()
    make_process(tmp_path / "proc", 7, cgroup=f"3:cpu:{POD_PATH}\n2:memory:{OTHER_PATH}\n")
    holders = Holders(proc=tmp_path / "proc", cgroup_root=tmp_path / "cgroup", clock_s=lambda: 0.0)
    holder = holders.resolve(7, 0)
    assert (holder.kind, holder.pod_uid, holder.container_id) == ("process", None, None)
    assert holders.counts == {"ambiguous": 1, "process": 1}


def test_an_unknown_holder_is_a_process_and_is_looked_for_again(machine: Machine) -> None:
    assert machine.holders.resolve(7, 0, "ghost").kind == "process"
    assert machine.holders.counts == {"gone": 1}
    make_process(machine.proc, 7, cgroup=f"0::{POD_PATH}\n")
    machine.now_s = 1.0
    assert machine.holders.resolve(7, 0).kind == "pod"


def test_no_more_holders_than_the_bound_are_remembered(machine: Machine) -> None:
    holders = machine.new_holders(max_known=5)
    for pid in range(50):
        holders.resolve(pid, 0)
    assert len(holders) == 5


@pytest.mark.kernel
def test_a_real_process_in_a_real_kubepods_cgroup_is_held_by_that_pod() -> None:
    root = find_cgroup2(Path("/sys/fs/cgroup"))
    need(root is not None, "no cgroup2", "run as root with cgroup2 mounted")
    assert root is not None
    folder = root / "kubepods" / f"pod{UID}" / ID
    folder.mkdir(parents=True)
    child = subprocess.Popen(["/bin/sleep", "60"])
    try:
        (folder / "cgroup.procs").write_text(str(child.pid))
        cgroup_id = folder.stat().st_ino
        holders = Holders()
        alive = holders.resolve(child.pid, cgroup_id)
        assert (alive.kind, alive.pod_uid, alive.container_id, alive.qos) == ("pod", UID, ID, "guaranteed")
        assert alive.comm == "sleep"
    finally:
        child.kill()
        child.wait()
        for path in (folder, folder.parent, folder.parent.parent):
            path.rmdir()
    assert holders.resolve(child.pid, cgroup_id) == alive
