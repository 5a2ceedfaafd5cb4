"""When a batch is cut, and where."""

from sinks.batches import Batches, Limits, Refused
from sinks.letters import KEPT_BYTES, letter_of
from sinks.state import SinkState
from streams.contract.plumbing import DeadLetter, HealthStatus
from streams.contract.topics import INCIDENTS, NIC_COUNTERS
from tests.sinks.records import dead_letter, incidents, nic

LIMITS = Limits(messages=3, size_bytes=1000, total_bytes=2500, sample_linger_s=5.0, finding_linger_s=0.5)


def filled(*offsets: int, partition: int = 0, size_bytes: int = 10, batches: Batches | None = None) -> Batches:
    batches = batches or Batches(LIMITS)
    for offset in offsets:
        batches.add(NIC_COUNTERS, partition, offset, size_bytes, nic(seq=offset + 1), 0.0)
    return batches


def cuts(batches: Batches, now_s: float = 0.0) -> list[tuple[int, int, int]]:
    return [(batch.partition, batch.first, batch.last) for batch in batches.due(now_s)]


def test_a_batch_is_due_by_count_by_bytes_or_by_age_whichever_comes_first() -> None:
    assert cuts(filled(0, 1)) == []
    assert cuts(filled(0, 1, 2)) == [(0, 0, 2)]
    assert cuts(filled(0, size_bytes=1000)) == [(0, 0, 0)]
    assert cuts(filled(0), now_s=4.9) == []
    assert cuts(filled(0), now_s=5.0) == [(0, 0, 0)]


def test_findings_wait_a_tenth_of_what_samples_wait() -> None:
    batches = Batches(LIMITS)
    batches.add(INCIDENTS, 0, 7, 10, incidents()[0], 0.0)

    assert cuts(batches, now_s=0.4) == []
    assert cuts(batches, now_s=0.5) == [(0, 7, 7)]


def test_partitions_are_cut_apart_and_all_at_once_when_memory_is_full() -> None:
    batches = filled(0, size_bytes=900)
    filled(5, partition=1, size_bytes=900, batches=batches)
    assert cuts(batches) == []

    filled(8, partition=2, size_bytes=900, batches=batches)

    assert cuts(batches) == [(0, 0, 0), (1, 5, 5), (2, 8, 8)]
    assert batches.size_bytes == 0


def test_a_noted_cut_is_made_again_though_more_has_come_and_the_limits_say_otherwise() -> None:
    batches = Batches(LIMITS)
    batches.keep_cut(("nic-counters", 0), 4)

    filled(0, 1, 2, 3, batches=batches)
    assert cuts(batches, now_s=9.0) == []
    filled(4, 5, 6, batches=batches)

    assert cuts(batches) == [(0, 0, 4)]
    assert cuts(batches, now_s=5.0) == [(0, 5, 6)]


def test_a_noted_cut_whose_end_is_gone_from_the_log_is_given_up() -> None:
    batches = Batches(LIMITS)
    batches.keep_cut(("nic-counters", 0), 4)

    filled(0, 1, batches=batches)

    assert cuts(batches, now_s=59.0) == []
    assert cuts(batches, now_s=60.0) == [(0, 0, 1)]


def test_a_partition_that_was_lost_leaves_nothing_behind() -> None:
    batches = Batches(LIMITS)
    batches.keep_cut(("nic-counters", 0), 0)
    filled(0, 1, batches=batches)

    batches.forget([("nic-counters", 0)])

    assert batches.due(100.0, everything=True) == []


def test_refusals_and_tombstones_move_the_offset_and_are_no_records() -> None:
    batches = Batches(LIMITS)
    batches.add(INCIDENTS, 0, 1, 5, Refused(letter=dead_letter()), 0.0)
    batches.add(INCIDENTS, 0, 2, 0, None, 0.0)
    batches.add(INCIDENTS, 0, 5, 5, incidents()[0], 0.0)

    [batch] = batches.due(0.0)

    assert (batch.first, batch.last, list(batch.offsets)) == (1, 5, [5])
    assert (list(batch.records), list(batch.letters)) == ([incidents()[0]], [dead_letter()])
    assert batch.token == "incidents/0/1-5"


def test_a_letter_near_the_brokers_limit_keeps_what_fits_and_says_so() -> None:
    whole, cut = _letter(KEPT_BYTES), _letter(KEPT_BYTES + 1)

    assert (whole.value, whole.reason) == (b"x" * KEPT_BYTES, "bad")
    assert (cut.value, cut.reason) == (b"x" * KEPT_BYTES, "bad (the first 900000 of 900001 bytes are kept)")


def test_a_trouble_is_told_once_until_it_changes_or_ends() -> None:
    told: list[tuple[str, str]] = []
    state = SinkState(log=lambda _status, part, message: told.append((part, message)))

    for message in ("the disk is full: 5 bytes", "the disk is full: 4 bytes", "away: no answer"):
        state.trouble("store", message)
    statuses = [state.status]
    state.well("store")
    state.well("store")

    assert told == [("store", "the disk is full: 5 bytes"), ("store", "away: no answer"), ("store", "works again")]
    assert [*statuses, state.status] == [HealthStatus.DOWN, HealthStatus.OK]


def _letter(size_bytes: int) -> DeadLetter:
    return letter_of(
        component="c",
        reason="bad",
        topic="t",
        partition=0,
        offset=1,
        key=None,
        value=b"x" * size_bytes,
        headers=[("a", b"1"), ("b", None)],
        broker_time_ms=None,
    )
