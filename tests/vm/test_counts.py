"""What the RDMA probes count in a real kernel, against what the workloads did."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.vm.conftest import Boot

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1200)]

GUEST_SECONDS = 300
TRUTHS = ("clean", "clean-b", "kill", "exit", "short-1", "short-2", "short-3")
CREATED = ("qp_created", "mr_registered", "mr_registered_bytes", "cq_created")
WHILE_LIVE = ("qp_destroyed", "qp_live", "mr_deregistered", "mr_live", "mr_live_bytes", "cq_destroyed", "cq_live")
PAIRS = [("qp_created", "qp_destroyed"), ("mr_registered", "mr_deregistered"), ("cq_created", "cq_destroyed")]

PAYLOAD_BYTES = 2 * 200 * 65536  # two queue pairs, 200 messages each
MTU_BYTES = 4096
ETHERNET_BYTES = 14
# IP 20, UDP 8, BTH 12, ICRC 4; the first packet of a message has a RETH of 16 more.
PACKET_HEADER_BYTES, FIRST_PACKET_BYTES = 44, 16


@dataclass(frozen=True)
class Seen:
    """All that one guest run left behind."""

    first: dict[str, Any]
    samples: list[dict[str, Any]]
    truths: dict[str, dict[str, Any]]
    folder: Path

    def last(self, truth: str, *, until_s: float | None = None) -> dict[str, Any]:
        """The last record of a workload's holder, in samples taken up to a moment."""
        pid = self.truths[truth]["pid"]
        samples = [sample for sample in self.samples if until_s is None or sample["at_s"] <= until_s]
        (record,) = [holder for holder in samples[-1]["holders"] if holder["pid"] == pid]
        return record


@pytest.fixture(scope="module")
def seen(boot: Boot) -> Seen:
    started = time.monotonic()
    folder = boot("counts.sh", name="counts", seconds=GUEST_SECONDS)
    first, *samples = [json.loads(line) for line in (folder / "samples").read_text().splitlines()]
    print(f"\nguest: {time.monotonic() - started:.0f} s; probes loaded in {first['load_s']} s")
    truths = {name: json.loads((folder / f"truth-{name}").read_text()) for name in TRUTHS}
    return Seen(first=first, samples=samples, truths=truths, folder=folder)


def test_every_probe_attaches_and_the_canary_is_counted(seen: Seen) -> None:
    assert seen.first["gaps"] == []
    assert seen.first["self_check"] is None
    assert {(sample["lost"], sample["older"]) for sample in seen.samples} == {(0, 0)}


@pytest.mark.parametrize("name", TRUTHS)
def test_pid_cgroup_and_device_are_the_workloads_own(seen: Seen, name: str) -> None:
    truth, record = seen.truths[name], seen.last(name)
    assert (record["pid"], record["cgroup_id"], record["device"]) == (
        truth["pid"],
        truth["cgroup_id"],
        truth["device"],
    )


@pytest.mark.parametrize("name", ["clean", "clean-b", "kill", "exit"])
def test_counts_equal_the_workloads_to_the_unit_while_they_live(seen: Seen, name: str) -> None:
    at_s = float((seen.folder / "all-live-at").read_text())
    record = seen.last(name, until_s=at_s + 0.4)
    expected = {field: seen.truths[name][field] for field in CREATED + WHILE_LIVE}
    assert {field: record[field] for field in expected} == expected


def test_live_queue_pairs_and_region_bytes_equal_what_the_kernel_tool_lists(seen: Seen) -> None:
    at_s = float((seen.folder / "all-live-at").read_text())
    pairs = json.loads((seen.folder / "rdma-qp").read_text())
    regions = json.loads((seen.folder / "rdma-mr").read_text())
    for name in ("clean", "clean-b", "kill", "exit"):
        pid, record = seen.truths[name]["pid"], seen.last(name, until_s=at_s + 0.4)
        assert record["qp_live"] == sum(pair.get("pid") == pid for pair in pairs)
        assert record["mr_live_bytes"] == sum(region["mrlen"] for region in regions if region.get("pid") == pid)


@pytest.mark.parametrize("name", TRUTHS)
def test_what_dies_with_its_process_is_credited_to_it(seen: Seen, name: str) -> None:
    record = seen.last(name)
    assert {field: record[field] for field in CREATED} == {field: seen.truths[name][field] for field in CREATED}
    for begun, ended in PAIRS:
        assert record[ended] == record[begun]
    assert (record["qp_live"], record["mr_live"], record["mr_live_bytes"], record["cq_live"]) == (0, 0, 0, 0)


def test_bytes_of_each_side_are_its_packets_with_their_headers(seen: Seen) -> None:
    sender, receiver = sorted(
        (h for h in seen.samples[-1]["holders"] if h["comm"] == "ib_write_bw"), key=lambda h: h["device"]
    )
    packets, messages = PAYLOAD_BYTES // MTU_BYTES, PAYLOAD_BYTES // 65536
    payload_and_headers = PAYLOAD_BYTES + packets * PACKET_HEADER_BYTES + messages * FIRST_PACKET_BYTES
    resent = sender["packets_sent"] - packets
    assert 0 <= resent <= packets // 20
    assert sender["bytes_sent"] - payload_and_headers == pytest.approx(
        resent * (MTU_BYTES + PACKET_HEADER_BYTES), abs=resent * FIRST_PACKET_BYTES
    )
    # The other side sends acknowledgements only: 20 + 8 + 12 + AETH 4 + ICRC 4.
    assert receiver["bytes_sent"] == receiver["packets_sent"] * 48
    assert sender["cgroup_id"] != receiver["cgroup_id"]


def test_bytes_of_the_only_sender_agree_with_the_netdev(seen: Seen) -> None:
    before, after = (
        tuple(int(word) for word in (seen.folder / f"wire-{when}").read_text().split()) for when in ("before", "after")
    )
    wire_bytes, wire_packets = after[0] - before[0], after[1] - before[1]
    (sender,) = [h for h in seen.samples[-1]["holders"] if h["comm"] == "ib_write_bw" and h["device"] == "rxe0"]
    others = wire_packets - sender["packets_sent"]  # the TCP exchange that sets ib_write_bw up, ARP
    assert 0 <= others <= 60
    ours = sender["bytes_sent"] + sender["packets_sent"] * ETHERNET_BYTES
    assert 0 <= wire_bytes - ours <= others * 1514
