"""NCCL's rows lose no call, and communicators carry the same name on every rank."""

import numpy as np

from producers.kernel.nccl_rows import CommFunction
from producers.nccl_flush import KEPT_TICKS, NcclTally
from streams.contract.calls import COLUMNS, Column, Op, Timing, pack_rows, unpack_rows
from streams.contract.inputs import CommEvent, CommEventKind, Communicator, Process
from tests.producers.agent.makers import call, event

T = 17_960_000_000
INIT, SPLIT, DESTROY = CommFunction.INIT_RANK, CommFunction.SPLIT, CommFunction.DESTROY


def describe(pid: int, cgroup_id: int) -> Process:
    return Process(pid=pid, pod_uid=f"pod-{pid}", cgroup_id=cgroup_id)


def born(pid: int, at_tick: int = T, comm_ptr: int = 0xA0, rank: int = 0, **values: object) -> object:
    return event(INIT, at_tick, pid, comm_ptr, rank=rank, nranks=2, **({"unique_id_hash": "0xfeed"} | values))


def test_a_born_communicator_has_its_hash_rank_and_size_and_stays_listed() -> None:
    tally = NcclTally(describe)
    flush = tally.take([], [born(1), born(2, rank=1)], first_tick=T, ticks=5)
    assert flush.processes == [
        Process(pid=1, pod_uid="pod-1", cgroup_id=7),
        Process(pid=2, pod_uid="pod-2", cgroup_id=7),
    ]
    assert flush.communicators == [
        Communicator(process=0, comm="0xfeed", rank=0, nranks=2),
        Communicator(process=1, comm="0xfeed", rank=1, nranks=2),
    ]
    assert flush.events == [
        CommEvent(kind=CommEventKind.BORN, communicator=0, us=5_000),
        CommEvent(kind=CommEventKind.BORN, communicator=1, us=5_000),
    ]
    assert len(tally.take([], [], first_tick=T + 100_000, ticks=5).communicators) == 2


def test_a_call_becomes_a_row_with_every_column() -> None:
    tally = NcclTally(describe)
    tally.take([], [born(1)], first_tick=T - 5, ticks=5)
    row = call(
        T + 3, op=Op.REDUCE_SCATTER, dtype=9, count=1000, calls=4, failed=1, first_seq=7, last_seq=10,
        first_ns=(T + 3) * 100_000_000 + 1_000_000, last_ns=(T + 3) * 100_000_000 + 90_000_000,
    )  # fmt: skip
    flush = tally.take([row], [], first_tick=T, ticks=5)
    assert flush.rows.tolist() == [[
        3, 0, Op.REDUCE_SCATTER, 9, 1000, 2000, 4, 1, 7, 10, 301_000, 390_000, 0, 0, 0, 0, Timing.ENQUEUE,
    ]]  # fmt: skip
    assert np.array_equal(unpack_rows(pack_rows(flush.rows), communicators=1, ticks=5), flush.rows)


def test_rows_with_equal_keys_add_up() -> None:
    tally = NcclTally(describe)
    rows = [
        call(T, calls=2, first_seq=1, last_seq=2, first_ns=T * 10**8 + 1000, last_ns=T * 10**8 + 5000),
        call(T, calls=3, failed=1, first_seq=3, last_seq=5, first_ns=T * 10**8 + 7000, last_ns=T * 10**8 + 9000),
        call(T, calls=0, failed=2, first_seq=0, last_seq=0, first_ns=0, last_ns=0),
        call(T, count=5),
    ]
    found = tally.take(rows, [], first_tick=T, ticks=1).rows
    small, big = found
    assert small[Column.COUNT] == 5
    columns = [Column.CALLS, Column.FAILED, Column.FIRST_SEQ, Column.LAST_SEQ, Column.FIRST_US, Column.LAST_US]
    assert big[columns].tolist() == [5, 3, 1, 5, 1, 9]


def test_a_call_that_was_counted_late_is_in_the_next_record_with_its_own_time() -> None:
    tally = NcclTally(describe)
    flush = tally.take([call(T - 1)], [], first_tick=T, ticks=5)
    assert flush.rows[0, [Column.TICK_OFFSET, Column.CALLS, Column.FIRST_US]].tolist() == [0, 1, -90_000]
    assert tally.late_rows == 1


def test_a_call_without_a_known_birth_is_named_by_process_and_pointer_for_a_minute() -> None:
    tally = NcclTally(describe)
    flush = tally.take([call(T, pid=5, comm_ptr=0xBEEF)], [], first_tick=T, ticks=5)
    assert flush.communicators == [Communicator(process=0, comm="5:beef")]
    assert len(tally.take([], [], first_tick=T + KEPT_TICKS, ticks=5).communicators) == 1
    assert tally.take([], [], first_tick=T + KEPT_TICKS + 1, ticks=5).communicators == []


def test_an_unknown_type_has_unknown_bytes_and_no_type_has_none() -> None:
    tally = NcclTally(describe)
    rows = [call(T, dtype=99, count=8), call(T, op=Op.SIGNAL, dtype=None, count=0)]
    found = tally.take(rows, [], first_tick=T, ticks=1).rows
    assert found[:, [Column.OP, Column.DTYPE, Column.BYTES]].tolist() == [[Op.ALL_REDUCE, 99, -1], [Op.SIGNAL, -1, 0]]


def test_a_dead_communicator_is_told_once_and_its_pointer_can_be_born_again() -> None:
    tally = NcclTally(describe)
    tally.take([], [born(1)], first_tick=T, ticks=5)
    again = born(1, T + 7, unique_id_hash="0xcafe")
    flush = tally.take([call(T + 8)], [event(DESTROY, T + 6), again], first_tick=T + 5, ticks=5)
    assert [one.comm for one in flush.communicators] == ["0xfeed", "0xcafe"]
    assert [(one.kind, one.communicator) for one in flush.events] == [(CommEventKind.DIED, 0), (CommEventKind.BORN, 1)]
    assert flush.rows[0, Column.COMMUNICATOR] == 1
    gone = tally.take([], [event(CommFunction.PROCESS_EXIT, T + 11)], first_tick=T + 10, ticks=5)
    assert [one.kind for one in gone.events] == [CommEventKind.DIED]
    assert tally.take([], [], first_tick=T + 15, ticks=5).communicators == []


def test_split_children_have_one_name_on_all_ranks_and_differ_by_colour_and_call() -> None:
    names = {}
    for pid in (1, 2):
        tally = NcclTally(describe)
        events = [
            born(pid, rank=pid - 1),
            event(SPLIT, T + 1, pid, 0xB0, parent_ptr=0xA0, color=0),
            event(SPLIT, T + 2, pid, 0xB1, parent_ptr=0xA0, color=0),
            event(SPLIT, T + 3, pid, 0xB2, parent_ptr=0xA0, color=pid),
        ]
        names[pid] = [one.comm for one in tally.take([], events, first_tick=T, ticks=5).communicators]
    assert names[1][:3] == names[2][:3]
    assert names[1][3] != names[2][3]
    assert len({*names[1], *names[2]}) == 5


def test_calls_after_a_failed_birth_go_by_what_the_attempt_said() -> None:
    tally = NcclTally(describe)
    failed = born(1, comm_ptr=0, result=1)
    flush = tally.take([call(T, comm_ptr=0, failed=1)], [failed, failed], first_tick=T, ticks=5)
    assert flush.communicators == [Communicator(process=0, comm="0xfeed", rank=0, nranks=2)]
    assert [one.failed for one in flush.events] == [True, True]
    assert flush.rows.shape == (1, COLUMNS)
