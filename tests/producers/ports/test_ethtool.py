"""Driver statistics come from the real ioctl, and from what the tool printed, under the driver's own names."""

import errno
import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from producers.ports.delta import ABSENT
from producers.ports.ethtool import EthtoolSocket, unique_names
from producers.ports.ethtool_read import EthtoolReader
from producers.ports.ethtool_text import parse_ethtool_text
from producers.ports.flush import Gap
from tests.paths import need, shared

ASK_A_VETH = """
import subprocess
from producers.ports.ethtool import EthtoolSocket
subprocess.run(["ip", "link", "add", "fs0", "type", "veth", "peer", "name", "fs1"], check=True)
kernel = EthtoolSocket()
names = kernel.names("fs0")
values = kernel.values("fs0", len(names))
print(len(names) == len(values), values[names.index("peer_ifindex")])
for line in subprocess.run(["ip", "-o", "link", "show", "fs1"], capture_output=True, text=True).stdout.splitlines():
    print(line.split(":")[0])
"""


class Fake:
    """Answers like the kernel: a netdev's list of statistics, or its errno."""

    def __init__(self, netdevs: dict[str, dict[str, int] | int]) -> None:
        self.netdevs = netdevs
        self.asked = 0

    def names(self, netdev: str) -> tuple[str, ...]:
        return tuple(self._rows(netdev))

    def values(self, netdev: str, _count: int) -> NDArray[np.uint64]:
        self.asked += 1
        return np.array(list(self._rows(netdev).values()), dtype=np.uint64)

    def _rows(self, netdev: str) -> dict[str, int]:
        rows = self.netdevs[netdev]
        if isinstance(rows, int):
            raise OSError(rows, errno.errorcode[rows])
        return rows


def read(reader: EthtoolReader) -> dict[str, int]:
    into = [0] * len(reader.names)
    reader.read(into, 0)
    return dict(zip(reader.names, into, strict=True))


def test_the_kernels_ioctl_gives_a_veths_statistics_with_its_peers_index() -> None:
    enter = ["unshare", "-rn"]
    usable = subprocess.run([*enter, "ip", "link", "add", "fs0", "type", "veth"], capture_output=True, check=False)
    need(usable.returncode == 0, "no veth in a network namespace of our own", "run as root, with iproute2")
    out = subprocess.run(
        [*enter, sys.executable, "-c", ASK_A_VETH], capture_output=True, text=True, check=True
    ).stdout.split()
    assert out[0] == "True"
    assert out[1] == out[2]


def test_a_netdev_without_statistics_answers_eopnotsupp() -> None:
    with pytest.raises(OSError, match="not supported") as refusal:
        EthtoolSocket().names("lo")
    assert refusal.value.errno == errno.EOPNOTSUPP


def test_a_netdev_that_is_not_there_answers_enodev() -> None:
    with pytest.raises(OSError, match="No such device") as refusal:
        EthtoolSocket().names("nonesuch0")
    assert refusal.value.errno == errno.ENODEV


def test_a_repeated_name_is_numbered() -> None:
    assert unique_names(["a", "b", "a", "a"]) == ("a", "b", "a#2", "a#3")


def test_rows_per_queue_are_left_out_and_counted() -> None:
    reader = EthtoolReader(("e0",), Fake({"e0": {"rx_prio3_pause": 5, "rx0_bytes": 1, "ch0_events": 2}}), "m/1")
    assert read(reader) == {"eth/rx_prio3_pause": 5}
    assert reader.gaps == (
        Gap(source="m/1", what="eth/*", reason="2 rows per queue, channel or vector are not published"),
    )


def test_a_bonds_members_are_summed_by_name_even_where_their_lists_differ() -> None:
    fake = Fake({"e0": {"a": 1, "b": 2**63}, "e1": {"x": 9, "b": 2**62, "a": 10}})
    assert read(EthtoolReader(("e0", "e1"), fake, "m/1")) == {"eth/a": 11, "eth/b": 2**63 + 2**62}


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EPERM])
def test_a_refusal_is_a_named_gap(code: int) -> None:
    reader = EthtoolReader(("e0",), Fake({"e0": code}), "m/1")
    assert read(reader) == {}
    assert reader.gaps == (Gap(source="m/1", what="eth/*", reason=f"e0: {errno.errorcode[code]}"),)
    assert not reader.changed


def test_a_member_that_stops_answering_makes_the_whole_absent_never_a_part() -> None:
    fake = Fake({"e0": {"a": 1}, "e1": {"a": 10}})
    reader = EthtoolReader(("e0", "e1"), fake, "m/1")
    fake.netdevs["e1"] = errno.ENODEV
    assert read(reader) == {"eth/a": ABSENT}
    assert reader.changed


def test_a_list_that_grew_is_not_read_under_old_names() -> None:
    fake = Fake({"e0": {"a": 1}})
    reader = EthtoolReader(("e0",), fake, "m/1")
    fake.netdevs["e0"] = {"new": 5, "a": 1}
    assert read(reader) == {"eth/a": ABSENT}
    assert reader.changed


def paced(reader: EthtoolReader, readings: int) -> list[int]:
    """The ticks at which the driver was asked."""
    values = [read(reader)["eth/a"] for _ in range(readings)]
    return [tick for tick, value in enumerate(values) if value == 1]


def test_a_steadily_slow_driver_is_asked_seldom_which_is_a_gap_until_it_is_fast_again() -> None:
    now_ns, took_ns = [0], [6_000_000]

    def clock_ns() -> int:
        now_ns[0] += took_ns[0]
        return now_ns[0]

    reader = EthtoolReader(("e0",), Fake({"e0": {"a": 1}}), "m/1", clock_ns=clock_ns)
    assert paced(reader, 30) == [0, 1, 2, 10, 20]
    assert [gap.what for gap in reader.gaps] == ["eth/*"]
    took_ns[0] = 1_000
    assert paced(reader, 30) == [0, 10, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29]
    assert reader.gaps == ()


def test_one_slow_reading_changes_nothing() -> None:
    times = iter([0, 6_000_000, *range(7_000_000, 8_000_000, 1_000)])
    reader = EthtoolReader(("e0",), Fake({"e0": {"a": 1}}), "m/1", clock_ns=lambda: next(times))
    assert paced(reader, 20) == list(range(20))
    assert reader.gaps == ()


def test_text_is_divided_at_the_last_colon() -> None:
    text = shared("corpus", "ethtool", "be2net_rxq_colon.txt").read_text()
    assert dict(parse_ethtool_text(text).values)["rxq0: rx_bytes"] == 176801887745990


def test_names_with_dots_spaces_and_brackets_stay_apart() -> None:
    odd = dict(parse_ethtool_text(shared("corpus", "ethtool", "e1000e_odd_names.txt").read_text()).values)
    assert (odd["duplicate metric"], odd["duplicate_metric"], odd["port.rx_dropped"]) == (1, 2, 12028)
    rings = dict(parse_ethtool_text(shared("corpus", "ethtool", "bnx2x_brackets.txt").read_text()).values)
    assert (rings["[0]: rx_bytes"], rings["[1]: rx_bytes"]) == (209487403324, 207561754146)


@pytest.mark.parametrize("name", ["error_eperm.txt", "error_no_stats.txt"])
def test_the_tools_refusals_are_errors_not_empty_devices(name: str) -> None:
    text = shared("corpus", "ethtool", name).read_text()
    assert parse_ethtool_text(text).error == text.strip()


def test_every_line_of_every_real_text_is_understood() -> None:
    for path in shared("corpus", "ethtool").glob("*.txt"):
        found = parse_ethtool_text(path.read_text())
        lines = [line for line in path.read_text().splitlines() if line.strip() not in ("", "NIC statistics:")]
        assert found.error is not None or len(found.values) == len(lines), path.name
        assert found.ignored == (), path.name
