"""What a machine lacks is a named gap; a pod is one holder whatever its processes and containers."""

import os
from functools import partial
from pathlib import Path

import pytest

from producers import agent
from producers.agent import AgentSettings, describe_with, open_sources, resolve_with
from producers.identity.holders import Holder as Found
from producers.identity.process import Process as FoundProcess
from producers.kernel.rdma import RdmaObjects
from streams.contract.inputs import Holder, Process
from tests.producers.agent.makers import counters
from tests.producers.ports.trees import make_port


def settings(sysfs: Path, **more: object) -> AgentSettings:
    return AgentSettings(kafka={}, cluster="c", node="n", sysfs=sysfs, nccl_probes=False, **more)


class Known:
    """Stands for `Holders`: pids below 10 are in pod `p`, below 20 in a container, others alone."""

    def resolve(self, pid: int, cgroup_id: int, comm: str = "") -> Found:
        kind = "pod" if pid < 10 else "container" if pid < 20 else "process"
        return Found(
            kind=kind,
            pod_uid="p" if kind == "pod" else None,
            container_id=None if kind == "process" else f"c{cgroup_id}",
            runtime=None,
            qos=None,
            pid=pid,
            comm=comm or "python",
            start_ticks=500,
        )

    def process(self, pid: int, cgroup_id: int) -> FoundProcess | None:
        assert cgroup_id
        return FoundProcess(
            pid=pid, start_ticks=500, comm="python", cgroup="", pid_namespace=None, environment={"SLURM_JOB_ID": "7"}
        )


def test_processes_and_containers_of_a_pod_are_one_holder() -> None:
    resolve = resolve_with(Known())
    first, second = resolve(counters(1, cgroup_id=70)), resolve(counters(2, cgroup_id=71))
    assert first == second == Holder(pod_uid="p", container_id="c70", comm="p1", cgroup_id=70)


def test_a_container_without_a_pod_is_one_holder_and_a_process_stands_alone() -> None:
    resolve = resolve_with(Known())
    assert resolve(counters(10, cgroup_id=70)) == resolve(counters(11, cgroup_id=70))
    assert resolve(counters(10, cgroup_id=70)) != resolve(counters(10, cgroup_id=71))
    assert resolve(counters(20)) == Holder(pid=20, comm="p20", cgroup_id=7)
    assert resolve(counters(20)) != resolve(counters(21))


def test_a_process_is_told_with_its_start_and_its_schedulers_words(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu 1 2 3\nbtime 1000\n")
    found = describe_with(Known(), tmp_path)(3, 70)
    started_us = 1_000_000_000 + 500 * 1_000_000 // os.sysconf("SC_CLK_TCK")
    assert found == Process(
        pid=3, started_us=started_us, comm="python", pod_uid="p", container_id="c70", cgroup_id=70,
        hints={"SLURM_JOB_ID": "7"},
    )  # fmt: skip


def test_a_node_without_rdma_devices_says_so(tmp_path: Path) -> None:
    sources = open_sources(settings(tmp_path))
    assert sources.rdma is None
    assert [gap.reason for gap in sources.gaps] == ["no RDMA device when the agent started"]
    assert sources.missing == [
        "RDMA objects: no RDMA device when the agent started",
        "NCCL calls: switched off by the setting nccl_probes",
    ]
    assert (sources.probes_wanted, sources.probes_attached) == (2, 0)


def test_a_kernel_without_the_rdma_core_is_a_gap_and_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_port(tmp_path)
    (tmp_path / "kallsyms").touch()
    monkeypatch.setattr(agent, "RdmaObjects", partial(RdmaObjects, kallsyms=tmp_path / "kallsyms"))
    sources = open_sources(settings(tmp_path))
    assert sources.rdma is None
    assert {gap.source for gap in sources.gaps} == {"rdma_objects", "rdma_bytes"}
    assert (sources.probes_wanted, sources.probes_attached) == (2, 0)
    assert all(gap.reason for gap in sources.gaps)
