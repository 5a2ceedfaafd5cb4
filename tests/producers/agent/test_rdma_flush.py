"""Holders' counters per tick are exact: sums survive missing ticks, merged processes and vanished ones."""

from producers.kernel.rdma_decode import HolderCounters
from producers.rdma_flush import RdmaTally
from streams.contract.inputs import Holder
from streams.contract.series import MISSING
from tests.producers.agent.makers import counters

POD, OTHER = Holder(pod_uid="pod"), Holder(pod_uid="other")


def by_pid(one: HolderCounters) -> Holder:
    return OTHER if one.pid >= 90 else POD


def values(tally: RdmaTally, feature: str, first: int, ticks: int, holder: Holder = POD) -> list[int] | None:
    found = [holding for holding in tally.flush(first, ticks) if holding.holder == holder]
    return found[0].values[feature].tolist() if found else None


def test_cumulative_counters_become_differences_and_levels_stay() -> None:
    tally = RdmaTally(by_pid)
    for tick, (created, live) in enumerate([(4, 4), (4, 4), (10, 9)]):
        tally.sample(tick, [counters(1, qp_created=created, qp_destroyed=created - live, qp_live=live)])
    (holding,) = tally.flush(0, 3)
    assert (holding.holder, holding.device) == (POD, "rxe0")
    assert holding.values["qp_created"].tolist() == [4, 0, 6]
    assert holding.values["qp_destroyed"].tolist() == [0, 0, 1]
    assert holding.values["qp_live"].tolist() == [4, 4, 9]


def test_processes_of_one_holder_are_summed_per_device() -> None:
    tally = RdmaTally(by_pid)
    tally.sample(
        0, [counters(1, qp_live=2), counters(2, qp_live=3), counters(3, "rxe1", qp_live=5), counters(90, qp_live=7)]
    )
    found = {(h.holder.pod_uid, h.device): h.values["qp_live"].tolist() for h in tally.flush(0, 1)}
    assert found == {("pod", "rxe0"): [5], ("pod", "rxe1"): [5], ("other", "rxe0"): [7]}


def test_what_happened_in_ticks_without_a_reading_is_whole_in_the_next_and_they_are_missing() -> None:
    tally = RdmaTally(by_pid)
    tally.sample(0, [counters(1, mr_registered=1, mr_live=1)])
    tally.sample(3, [counters(1, mr_registered=8, mr_live=2)])
    (holding,) = tally.flush(0, 5)
    assert holding.values["mr_registered"].tolist() == [1, MISSING, MISSING, 7, MISSING]
    assert holding.values["mr_live"].tolist() == [1, MISSING, MISSING, 2, MISSING]


def test_a_process_that_vanished_keeps_its_last_differences_and_holds_nothing_afterwards() -> None:
    tally = RdmaTally(by_pid)
    tally.sample(0, [counters(1, qp_created=3, qp_live=3), counters(2, qp_created=1, qp_live=1)])
    tally.sample(1, [counters(1, qp_created=5, qp_destroyed=5), counters(2, qp_created=1, qp_live=1)])
    tally.sample(2, [counters(2, qp_created=1, qp_live=1)])
    (holding,) = tally.flush(0, 3)
    assert holding.values["qp_created"].tolist() == [4, 2, 0]
    assert holding.values["qp_destroyed"].tolist() == [0, 5, 0]
    assert holding.values["qp_live"].tolist() == [4, 1, 1]


def test_a_holder_that_holds_nothing_and_does_nothing_has_no_row() -> None:
    tally = RdmaTally(by_pid)
    tally.sample(0, [counters(1, qp_created=3, qp_destroyed=3)])
    assert values(tally, "qp_created", 0, 1) == [3]
    tally.sample(1, [counters(1, qp_created=3, qp_destroyed=3)])
    assert values(tally, "qp_created", 1, 1) is None


def test_bytes_are_told_only_for_devices_whose_driver_shows_them() -> None:
    tally = RdmaTally(by_pid)
    tally.sample(0, [counters(1, qp_live=1, bytes_sent=100, packets_sent=2), counters(1, "mlx5_0", qp_live=1)])
    tally.sample(1, [counters(1, qp_live=1, bytes_sent=250, packets_sent=3), counters(1, "mlx5_0", qp_live=1)])
    found = {holding.device: holding.values for holding in tally.flush(0, 2)}
    assert found["rxe0"]["tx_bytes"].tolist() == [100, 150]
    assert found["rxe0"]["tx_packets"].tolist() == [2, 1]
    assert "tx_bytes" not in found["mlx5_0"], "not seen is not zero"
    assert tally.counts_bytes


def test_a_counter_that_went_back_counts_from_zero_again() -> None:
    tally = RdmaTally(by_pid)
    tally.sample(0, [counters(1, cq_created=9, cq_live=9)])
    tally.sample(1, [counters(1, cq_created=2, cq_live=2)])
    assert values(tally, "cq_created", 0, 2) == [9, 2]


def test_a_process_id_that_comes_back_after_being_forgotten_counts_from_zero() -> None:
    tally = RdmaTally(by_pid)
    tally.sample(0, [counters(1, qp_created=5)])
    tally.sample(1, [])
    tally.sample(2, [counters(1, qp_created=7, qp_live=7)])
    assert values(tally, "qp_created", 0, 3) == [5, 0, 7]


def test_each_tick_belongs_to_one_flush_only() -> None:
    tally = RdmaTally(by_pid)
    for tick in range(4):
        tally.sample(tick, [counters(1, qp_created=tick + 1, qp_live=1)])
    assert values(tally, "qp_created", 0, 2) == [1, 1]
    assert values(tally, "qp_created", 2, 2) == [1, 1]
