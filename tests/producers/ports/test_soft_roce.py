"""On a real kernel's Soft-RoCE ports the sampled deltas add up to what the kernel counted, tick by tick."""

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from producers.ports.delta import MISSING
from tests.paths import cache_dir, need_guest, repo_root

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]


class Guest(NamedTuple):
    """What the guest wrote: one dictionary a flush, and the kernel's own counts around them."""

    flushes: list[dict[str, list[list[object]]]]
    before: Mapping[str, int]
    after: Mapping[str, int]


@pytest.fixture(scope="module")
def guest() -> Guest:
    need_guest()
    lab = repo_root() / "tests" / "vm"
    subprocess.run([lab / "install"], check=True, timeout=600)
    out = cache_dir() / "vm" / "ports"
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        old.unlink()
    script = Path(__file__).parent / "guest" / "ports.sh"
    command = [lab / "boot", "-t", "400", "-o", out, script, repo_root(), sys.executable, out]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=500)
    output = out / "output"
    assert done.returncode == 0, done.stderr + (output.read_text() if output.exists() else "")
    lines = [json.loads(line) for line in (out / "flushes").read_text().splitlines()]
    return Guest(flushes=lines[:-1], before=counts(out / "before"), after=counts(out / "after"))


def counts(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in path.read_text().splitlines())}


def ticks_of(guest: Guest, device: str, name: str) -> list[int]:
    """All ticks of one counter of one device, without those that are MISSING."""
    found: list[int] = []
    for flush in guest.flushes:
        devices = [port[0] for port in flush["ports"]]
        for port, counter, values in flush["rows"]:
            if devices[port] == device and counter == name:  # type: ignore[call-overload]
                found += [value for value in values if value != MISSING]  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("name", ["net/tx_bytes", "net/rx_bytes", "net/tx_packets", "hw/sent_pkts", "hw/rcvd_pkts"])
def test_deltas_add_up_to_the_kernels_own_count(guest: Guest, name: str) -> None:
    bare = name.partition("/")[2]
    counted = guest.after[bare] - guest.before[bare]
    assert counted > 0
    assert sum(ticks_of(guest, "rxe0", name)) == counted


def test_a_transfer_of_known_size_crosses_the_port(guest: Guest) -> None:
    payload = 300 * 65536
    sent = sum(ticks_of(guest, "rxe0", "net/tx_bytes"))
    assert payload < sent < payload * 1.3


def test_a_link_that_goes_down_and_up_is_seen_in_states_and_counters(guest: Guest) -> None:
    states = ticks_of(guest, "rxe0", "port/state")
    changes = [states[0], *(b for a, b in itertools.pairwise(states) if a != b)]
    assert changes == [4, 1, 4]
    assert sum(ticks_of(guest, "rxe0", "hw/link_downed")) == 1
    assert (
        sum(ticks_of(guest, "rxe0", "net/carrier_changes"))
        == guest.after["carrier_changes"] - guest.before["carrier_changes"]
    )


def test_ports_know_their_netdevs_and_that_their_rate_is_nominal(guest: Guest) -> None:
    first = guest.flushes[0]
    assert first["ports"] == [["rxe0", "v0", "ACTIVE", 10_000, "rate"], ["rxe1", "v1", "ACTIVE", 10_000, "rate"]]
    assert ["rxe0/1", "ib/*", "no counters folder"] in first["gaps"]
    assert ["rxe0/1", "capacity", "a software device claims a nominal rate"] in first["gaps"]


def test_a_device_that_is_unplugged_leaves_and_comes_back_as_reset(guest: Guest) -> None:
    seen = ["rxe1" in [port[0] for port in flush["ports"]] for flush in guest.flushes]
    gone, back = seen.index(False), len(seen) - seen[::-1].index(False)
    assert 0 < gone < back < len(seen)
    assert [1, "hw/sent_pkts"] in guest.flushes[back]["resets"]
    assert [1, "net/tx_bytes"] not in guest.flushes[back]["resets"]
    assert all(flush["resets"] == [] for flush in guest.flushes[:back])


def test_driver_statistics_of_a_real_netdev_are_sampled(guest: Guest) -> None:
    assert ticks_of(guest, "rxe0", "eth/peer_ifindex")
