"""A flush tells every tick of every counter as it was: exact, absent where unread, reset where reset."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from producers.ports.delta import MISSING
from producers.ports.flush import Gap, PortsFlush, Reset, Span
from producers.ports.sampler import MAX_FLUSH_TICKS, MAX_SPAN_TICKS, PortSampler
from tests.paths import shared
from tests.producers.ports.trees import make_port, write


def row(flush: PortsFlush, name: str, port: int = 0) -> list[int] | None:
    for index in range(len(flush.entity)):
        if flush.names[flush.name[index]] == name and flush.entity[index] == port:
            values: list[int] = flush.values[index].tolist()
            return values
    return None


def reasons(flush: PortsFlush) -> set[tuple[str, str]]:
    return {(gap.what, gap.reason) for gap in flush.gaps}


class Tree:
    """A sysfs tree of one port whose files a test rewrites in place, as the kernel does."""

    def __init__(self, root: Path, **counters: int) -> None:
        self.root = root
        self.folder = make_port(root, counters=counters or {"port_xmit_data": 0})

    def set(self, name: str, value: int | str, group: str = "counters") -> None:
        (self.folder / group / name).write_text(f"{value}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_the_first_tick_is_missing_and_each_later_one_is_its_own_delta(tree: Tree) -> None:
    sampler = PortSampler(sysfs=tree.root)
    for tick, value in enumerate([1000, 1000, 1250, 1253, 2000]):
        tree.set("port_xmit_data", value)
        sampler.sample(100 + tick)
    flush = sampler.flush(104)
    assert flush.first_tick == 100
    assert row(flush, "ib/port_xmit_data") == [MISSING, 0, 250, 3, 747]
    assert row(flush, "port/state") == [4, 4, 4, 4, 4]
    assert row(flush, "port/phys_state") == [5, 5, 5, 5, 5]
    assert (flush.resets, flush.spans) == ((), ())


def test_deltas_go_on_across_flushes(tree: Tree) -> None:
    sampler = PortSampler(sysfs=tree.root)
    sampler.sample(1)
    sampler.flush(1)
    tree.set("port_xmit_data", 7)
    sampler.sample(2)
    assert row(sampler.flush(2), "ib/port_xmit_data") == [7]


def test_a_late_sampler_leaves_the_tick_missing_and_says_what_the_next_delta_covers(tree: Tree) -> None:
    sampler = PortSampler(sysfs=tree.root)
    for tick, value in ((1, 0), (2, 10), (5, 40), (6, 50)):
        tree.set("port_xmit_data", value)
        sampler.sample(tick)
    flush = sampler.flush(6)
    assert row(flush, "ib/port_xmit_data") == [MISSING, 10, MISSING, MISSING, 30, 10]
    assert row(flush, "port/state") == [4, 4, MISSING, MISSING, 4, 4]
    index = [flush.names[i] for i in flush.name].index("ib/port_xmit_data")
    assert flush.spans == (Span(row=index, tick=4, ticks=3),)


def test_a_counter_that_alone_fails_for_a_tick_says_what_its_next_delta_covers(tmp_path: Path) -> None:
    tree = Tree(tmp_path, port_xmit_data=0, port_rcv_data=0)
    sampler = PortSampler(sysfs=tree.root)
    for tick, (sent, received) in enumerate([(0, 0), (10, "N/A"), (20, 8), (30, 9)]):
        tree.set("port_xmit_data", sent)
        tree.set("port_rcv_data", received)
        sampler.sample(tick)
    flush = sampler.flush(3)
    assert row(flush, "ib/port_xmit_data") == [MISSING, 10, 10, 10]
    assert row(flush, "ib/port_rcv_data") == [MISSING, MISSING, 8, 1]
    index = [flush.names[i] for i in flush.name].index("ib/port_rcv_data")
    assert flush.spans == (Span(row=index, tick=2, ticks=2),)


def test_a_tick_that_never_came_before_the_flush_is_missing(tree: Tree) -> None:
    sampler = PortSampler(sysfs=tree.root)
    sampler.sample(1)
    flush = sampler.flush(5)
    assert row(flush, "port/state") == [4, MISSING, MISSING, MISSING, MISSING]
    assert row(flush, "ib/port_xmit_data") is None
    assert flush.values.shape == (2, 5)


def test_what_was_counted_during_a_long_silence_is_left_out_and_said(tree: Tree) -> None:
    sampler = PortSampler(sysfs=tree.root)
    sampler.sample(1)
    sampler.flush(1)
    tree.set("port_xmit_data", 1_000_000)
    sampler.sample(2 + MAX_SPAN_TICKS)
    tree.set("port_xmit_data", 1_000_003)
    sampler.sample(3 + MAX_SPAN_TICKS)
    flush = sampler.flush(3 + MAX_SPAN_TICKS)
    assert row(flush, "ib/port_xmit_data") == [MISSING] * (MAX_SPAN_TICKS + 1) + [3]
    assert (
        "ib/port_xmit_data",
        "not read for over 10 ticks: what it counted meanwhile is left out",
    ) in reasons(flush)


def test_a_tick_sampled_twice_counts_once(tree: Tree) -> None:
    sampler = PortSampler(sysfs=tree.root)
    sampler.sample(1)
    tree.set("port_xmit_data", 5)
    sampler.sample(2)
    tree.set("port_xmit_data", 9)
    sampler.sample(2)
    sampler.sample(1)
    assert row(sampler.flush(2), "ib/port_xmit_data") == [MISSING, 5]


def test_a_sample_after_the_flushed_tick_waits_for_the_next_flush(tree: Tree) -> None:
    sampler = PortSampler(sysfs=tree.root)
    sampler.sample(1)
    tree.set("port_xmit_data", 5)
    sampler.sample(2)
    assert row(sampler.flush(1), "port/state") == [4]
    flush = sampler.flush(2)
    assert (flush.first_tick, row(flush, "ib/port_xmit_data")) == (2, [5])


def test_a_sleep_of_hours_gives_a_bounded_flush_that_says_so(tree: Tree) -> None:
    sampler = PortSampler(sysfs=tree.root)
    sampler.sample(1)
    flush = sampler.flush(100_000)
    assert flush.values.shape[1] == MAX_FLUSH_TICKS
    assert flush.first_tick == 100_000 - MAX_FLUSH_TICKS + 1
    assert ("ticks", f"{100_000 - MAX_FLUSH_TICKS} ticks were slept through") in reasons(flush)


def test_a_counter_that_went_back_is_a_reset_at_its_tick(tree: Tree) -> None:
    sampler = PortSampler(sysfs=tree.root)
    for tick, value in enumerate([100, 200, 3, 8]):
        tree.set("port_xmit_data", value)
        sampler.sample(tick)
    flush = sampler.flush(3)
    assert row(flush, "ib/port_xmit_data") == [MISSING, 100, MISSING, 5]
    assert flush.resets == (Reset(port=0, name="ib/port_xmit_data", tick=2),)


def test_a_wrapped_queue_counter_is_no_reset(tmp_path: Path) -> None:
    folder = make_port(tmp_path, hw_counters={"rx_write_requests": 4_294_967_290})
    sampler = PortSampler(sysfs=tmp_path)
    sampler.sample(1)
    (folder / "hw_counters" / "rx_write_requests").write_text("10\n")
    sampler.sample(2)
    flush = sampler.flush(2)
    assert row(flush, "hw/rx_write_requests") == [MISSING, 16]
    assert flush.resets == ()


def test_a_saturated_counter_is_missing_and_a_gap_never_a_zero() -> None:
    sampler = PortSampler(sysfs=shared("corpus", "sysfs", "06_h100_mlx5_ndr_and_bond"))
    sampler.sample(1)
    sampler.sample(2)
    flush = sampler.flush(2)
    assert row(flush, "ib/excessive_buffer_overrun_errors") is None
    assert row(flush, "ib/port_rcv_errors") == [MISSING, 0]
    assert (
        "ib/excessive_buffer_overrun_errors",
        "at its maximum: more of it cannot be counted",
    ) in reasons(flush)


def test_a_device_without_pma_has_its_states_and_one_gap_for_all_its_counters() -> None:
    sampler = PortSampler(sysfs=shared("corpus", "sysfs", "04_i40iw_no_pma"))
    sampler.sample(1)
    flush = sampler.flush(1)
    assert sorted(flush.names) == ["port/phys_state", "port/state"]
    assert ("ib/* (17 counters)", "N/A (no PMA)") in reasons(flush)
    assert sampler.failures == {"N/A (no PMA)": 17}


def test_a_port_that_answers_einval_stays_and_its_neighbour_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = make_port(tmp_path, device="mlx5_0", counters={"port_xmit_data": 1}) / "counters" / "port_xmit_data"
    make_port(tmp_path, device="mlx5_1", counters={"port_xmit_data": 1})
    real, inode = os.pread, bad.stat().st_ino

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino == inode:
            raise OSError(22, "Invalid argument")
        return real(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", pread)
    sampler = PortSampler(sysfs=tmp_path)
    sampler.sample(1)
    sampler.sample(2)
    flush = sampler.flush(2)
    assert row(flush, "ib/port_xmit_data", port=0) is None
    assert row(flush, "ib/port_xmit_data", port=1) == [MISSING, 0]
    assert Gap(source="mlx5_0/1", what="ib/port_xmit_data", reason="EINVAL") in flush.gaps


def test_a_link_that_goes_down_is_seen_at_its_tick(tree: Tree) -> None:
    sampler = PortSampler(sysfs=tree.root)
    for tick, state in enumerate(["4: ACTIVE", "1: DOWN", "1: DOWN", "4: ACTIVE"]):
        (tree.folder / "state").write_text(f"{state}\n")
        sampler.sample(tick)
    flush = sampler.flush(3)
    assert row(flush, "port/state") == [4, 1, 1, 4]
    assert flush.ports[0].state == "ACTIVE"


def test_a_port_plugged_in_later_is_found_and_one_pulled_out_is_gone(tree: Tree) -> None:
    sampler = PortSampler(sysfs=tree.root, rescan_ticks=2)
    sampler.sample(1)
    sampler.flush(1)
    make_port(tree.root, device="mlx5_9", counters={"port_xmit_data": 1})
    tree.set("port_xmit_data", 6)
    sampler.sample(3)
    sampler.flush(3)
    tree.set("port_xmit_data", 8)
    sampler.sample(4)
    flush = sampler.flush(4)
    assert [port.device for port in flush.ports] == ["mlx5_0", "mlx5_9"]
    assert row(flush, "ib/port_xmit_data") == [2]  # what was remembered of the old port outlived the rescan
    shutil.rmtree(tree.root / "class" / "infiniband" / "mlx5_9")
    sampler.sample(5)
    sampler.flush(5)
    sampler.sample(6)
    assert [port.device for port in sampler.flush(6).ports] == ["mlx5_0"]


def test_a_device_made_anew_is_a_reset_and_its_first_reading_is_missing(tree: Tree) -> None:
    tree.set("port_xmit_data", 50)
    sampler = PortSampler(sysfs=tree.root, rescan_ticks=1)
    sampler.sample(1)
    sampler.flush(1)
    tree.folder.rename(tree.folder.parent / "old")  # keeps the inode taken
    make_port(tree.root, counters={"port_xmit_data": 70})
    sampler.sample(2)
    sampler.flush(2)
    sampler.sample(3)
    flush = sampler.flush(3)
    assert row(flush, "ib/port_xmit_data") == [MISSING]
    assert flush.resets == (Reset(port=0, name="ib/port_xmit_data", tick=0),)


def test_a_netdev_that_outlives_its_rdma_device_is_not_reset(tmp_path: Path) -> None:
    folder = make_port(tmp_path, netdev="v0", statistics={"rx_bytes": 10}, hw_counters={"np_cnp_sent": 5})
    sampler = PortSampler(sysfs=tmp_path, rescan_ticks=1)
    sampler.sample(1)
    sampler.flush(1)
    folder.rename(folder.parent / "old")
    make_port(tmp_path, netdev="v0", statistics={"rx_bytes": 12}, hw_counters={"np_cnp_sent": 9})
    sampler.sample(2)
    sampler.flush(2)
    sampler.sample(3)
    flush = sampler.flush(3)
    assert row(flush, "net/rx_bytes") == [0]
    assert flush.resets == (Reset(port=0, name="hw/np_cnp_sent", tick=0),)


def test_no_ports_is_an_empty_flush(tmp_path: Path) -> None:
    sampler = PortSampler(sysfs=tmp_path)
    sampler.sample(1)
    flush = sampler.flush(2)
    assert (flush.ports, flush.names, flush.values.shape) == ((), (), (0, 2))


def test_arrays_have_the_types_of_the_contract(tree: Tree) -> None:
    sampler = PortSampler(sysfs=tree.root)
    sampler.sample(1)
    flush = sampler.flush(1)
    assert (flush.entity.dtype, flush.name.dtype, flush.values.dtype) == (np.int32, np.int32, np.int64)


def test_netdev_and_driver_statistics_come_with_their_prefixes(tmp_path: Path) -> None:
    class Driver:
        pause = 0

        def names(self, _netdev: str) -> tuple[str, ...]:
            return ("rx_prio3_pause_duration", "rx0_bytes")

        def values(self, _netdev: str, _count: int) -> NDArray[np.uint64]:
            return np.array([self.pause, 1], dtype=np.uint64)

    make_port(tmp_path, netdev="ens1", statistics={"rx_bytes": 10})
    driver = Driver()
    sampler = PortSampler(sysfs=tmp_path, statistics=driver)
    sampler.sample(1)
    (tmp_path / "class/net/ens1/statistics/rx_bytes").write_text("15\n")
    driver.pause = 80
    sampler.sample(2)
    flush = sampler.flush(2)
    assert row(flush, "net/rx_bytes") == [MISSING, 5]
    assert row(flush, "eth/rx_prio3_pause_duration") == [MISSING, 80]
    assert (flush.ports[0].netdev, flush.ports[0].rate_mbps) == ("ens1", 400_000)


def test_capacity_is_the_rate_until_a_second_of_more_is_seen(tmp_path: Path) -> None:
    folder = make_port(tmp_path, device="rxe0", rate="10 Gb/sec (4X QDR)", netdev="v0", statistics={"tx_bytes": 0})
    write(folder.parents[1] / "parent", "v0\n")
    sampler = PortSampler(sysfs=tmp_path)
    for tick in range(12):
        (tmp_path / "class/net/v0/statistics/tx_bytes").write_text(f"{tick * 250_000_000}\n")  # 20 Gb/s
        sampler.sample(tick)
        flush = sampler.flush(tick)
        expected = (10_000, "rate") if tick < 10 else (20_000, "observed")
        assert (flush.ports[0].capacity_mbps, flush.ports[0].capacity_source) == expected
    assert sampler.observed_mbps == {"rxe0/1": 20_000}


def test_words_of_four_bytes_are_counted_as_bytes_for_the_rate_seen(tmp_path: Path) -> None:
    folder = make_port(tmp_path, counters={"port_xmit_data": 0}, rate="<unknown>")
    sampler = PortSampler(sysfs=tmp_path)
    for tick in range(11):
        (folder / "counters" / "port_xmit_data").write_text(f"{tick * 1_250_000}\n")  # 50 MB/s -> 400 Mb/s
        sampler.sample(tick)
        port = sampler.flush(tick).ports[0]
    assert (port.rate_mbps, port.capacity_mbps, port.capacity_source) == (None, 400, "observed")


def test_a_setting_lowers_the_capacity(tmp_path: Path) -> None:
    make_port(tmp_path, device="rxe0")
    port = PortSampler(sysfs=tmp_path, capacity_settings_mbps={"rxe0": 100}).flush(1).ports[0]
    assert (port.capacity_mbps, port.capacity_source) == (100, "setting")


@pytest.mark.parametrize("name", sorted(path.name for path in shared("corpus", "sysfs").iterdir() if path.is_dir()))
def test_every_real_device_is_sampled(name: str) -> None:
    sampler = PortSampler(sysfs=shared("corpus", "sysfs", name))
    sampler.sample(1)
    sampler.sample(2)
    flush = sampler.flush(2)
    assert flush.ports
    assert all(port.rate_mbps for port in flush.ports)
    deltas_of_counters = [flush.values[i, 1] for i in range(len(flush.entity)) if flush.values[i, 0] == MISSING]
    assert all(value == 0 for value in deltas_of_counters)
    sampler.close()


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(1, MAX_SPAN_TICKS), st.integers(0, 2**30)), min_size=1, max_size=12),
    cuts=st.sets(st.integers(0, 11)),
)
def test_sums_are_exact_however_late_the_sampler_and_wherever_flushes_cut(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], cuts: set[int]
) -> None:
    tree = Tree(tmp_path_factory.mktemp("sysfs"))
    sampler = PortSampler(sysfs=tree.root)
    sampler.sample(0)
    tick = value = total = ticks = 0
    for index, (late, counted) in enumerate(steps):
        tick, value = tick + late, value + counted
        tree.set("port_xmit_data", value)
        sampler.sample(tick)
        if index in cuts or index == len(steps) - 1:
            flush = sampler.flush(tick)
            found = [delta for delta in row(flush, "ib/port_xmit_data") or [] if delta != MISSING]
            total += sum(found)
            ticks += len(found) + sum(span.ticks - 1 for span in flush.spans)
    assert (total, ticks) == (value, tick)
    sampler.close()
