"""Every raw input of the corpora is explained as the agent understands it, or says why it cannot be."""

import json
from pathlib import Path

import pytest

from producers.explain import EXPLAINERS, Explanation, explain
from tests.paths import shared
from tests.producers.ports.trees import make_port, write

CGROUPS = json.loads(shared("corpus", "cgroup", "index.json").read_text())
MAPS = [
    case
    for case in json.loads(shared("corpus", "ebpf", "maps_libnccl.json").read_text())
    if case["expected_path"] != "unsure"
]
SYSFS = sorted(path.name for path in shared("corpus", "sysfs").iterdir() if path.is_dir())
ETHTOOL = sorted(path.name for path in shared("corpus", "ethtool").glob("*.txt"))


@pytest.mark.parametrize("case", CGROUPS, ids=[case["id"] for case in CGROUPS])
def test_a_cgroup_is_explained_as_the_corpus_expects(case: dict[str, str], tmp_path: Path) -> None:
    found = explain("cgroup", write(tmp_path / "cgroup", case["input"]))
    assert (found.understood, found.readable) == (case["expected"], True)


@pytest.mark.parametrize("case", MAPS, ids=[case["id"] for case in MAPS])
def test_maps_are_explained_as_the_corpus_expects(case: dict[str, str], tmp_path: Path) -> None:
    assert explain("maps", write(tmp_path / "maps", case["line"])).understood == case["expected_path"]


def test_a_library_that_was_replaced_while_mapped_is_noted(tmp_path: Path) -> None:
    line = "7f1c2a000000-7f1c3a000000 r-xp 00000000 08:01 99  /tmp/libnccl.so.2 (deleted)\n"
    found = explain("maps", write(tmp_path / "maps", line))
    assert found.understood == "/tmp/libnccl.so.2"  # noqa: S108
    assert found.notes == ("/tmp/libnccl.so.2 is marked deleted: the path may name another file by now",)  # noqa: S108


@pytest.mark.parametrize("name", SYSFS)
def test_every_number_of_a_real_sysfs_tree_is_in_its_explanation(name: str) -> None:
    tree = shared("corpus", "sysfs", name)
    found = explain("sysfs", tree)
    assert isinstance(found.understood, list)
    ports = {(port["device"], port["port"]): port for port in found.understood}  # type: ignore[index,call-overload]
    for file in tree.glob("class/infiniband/*/ports/*/*counters*/*"):
        folder = file.parents[1]
        counters = ports[folder.parents[1].name, int(folder.name)]["counters"]  # type: ignore[call-overload,index]
        text = file.read_text().strip()
        if text.isdecimal() and file.name != "lifespan":
            assert counters[file.name] == int(text), file  # type: ignore[index,call-overload]
        else:
            assert file.name not in counters, file  # type: ignore[operator]


def test_a_port_has_state_and_rate_beside_its_counters() -> None:
    found = explain("sysfs", shared("corpus", "sysfs", "08_irdma_plus_mlx5"))
    assert isinstance(found.understood, list)
    assert found.understood[1] == {
        "device": "mlx5_0",
        "port": 1,
        "state": "ACTIVE",
        "rate_bps": 100_000_000_000,
        "counters": {"port_xmit_data": 1, "out_of_sequence": 0},
    }
    assert "mlx5_0/1 ib/port_xmit_data counts units of 4 bytes" in found.notes
    assert "irdma0/1 ib/*: no counters folder" in found.ignored


def test_what_is_no_number_is_ignored_with_its_reason() -> None:
    found = explain("sysfs", shared("corpus", "sysfs", "04_i40iw_no_pma"))
    assert "i40iw0/1 ib/* (17 counters): N/A (no PMA)" in found.ignored


def test_a_saturated_counter_is_noted() -> None:
    found = explain("sysfs", shared("corpus", "sysfs", "06_h100_mlx5_ndr_and_bond"))
    assert (
        "mlx5_0/1 ib/excessive_buffer_overrun_errors is at its maximum (4 bits): more of it cannot be counted"
        in found.notes
    )


def test_one_name_in_two_folders_is_told_apart(tmp_path: Path) -> None:
    make_port(tmp_path, counters={"link_downed": 1}, hw_counters={"link_downed": 2})
    found = explain("sysfs", tmp_path)
    assert isinstance(found.understood, list)
    assert found.understood[0]["counters"] == {"link_downed": 1, "hw/link_downed": 2}  # type: ignore[index,call-overload]


@pytest.mark.parametrize("name", ETHTOOL)
def test_every_row_of_a_real_ethtool_text_is_in_its_explanation(name: str) -> None:
    path = shared("corpus", "ethtool", name)
    found = explain("ethtool", path)
    if name.startswith("error_"):
        assert found == Explanation(input=str(path), understood=None, notes=(path.read_text().strip(),), readable=False)
        return
    assert isinstance(found.understood, list)
    counters = found.understood[0]["counters"]  # type: ignore[index,call-overload]
    rows = [line.strip().rpartition(": ") for line in path.read_text().splitlines()[1:]]
    assert counters == {name: int(value) for name, _, value in rows}
    assert found.ignored == ()


@pytest.mark.parametrize("kind", sorted(EXPLAINERS))
def test_an_input_that_is_not_there_is_unreadable_with_the_reason(kind: str, tmp_path: Path) -> None:
    found = explain(kind, tmp_path / "nonesuch")
    assert (found.understood, found.readable, len(found.notes)) == (None, False, 1)


def test_a_folder_without_rdma_and_a_text_without_statistics_are_unreadable(tmp_path: Path) -> None:
    assert not explain("sysfs", tmp_path).readable
    assert explain("ethtool", write(tmp_path / "e", "hello")).notes == ("no statistics in it",)


def test_lines_that_disagree_are_noted(tmp_path: Path) -> None:
    case = next(case for case in CGROUPS if case["id"] == "spire-two-containers")
    found = explain("cgroup", write(tmp_path / "c", case["input"]))
    assert found.notes == ("lines name different pods or containers: nobody is named",)


def test_the_json_line_has_exactly_the_four_fields(tmp_path: Path) -> None:
    line = explain("cgroup", write(tmp_path / "c", "0::/\n")).as_json()
    assert json.loads(json.dumps(line)) == {
        "input": str(tmp_path / "c"),
        "understood": None,
        "ignored": [],
        "notes": [],
    }
