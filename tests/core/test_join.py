"""What `join` promises: pairs, pods as of a tick, silence, late nodes, job keys, and that nothing is lost silently."""

from __future__ import annotations

from itertools import chain, permutations

import msgspec
import numpy as np
import pytest

from streams.contract.header import Gap, WatcherClock
from streams.contract.inputs import Communicator, JobRef, NcclThroughput, NicCounters, NodePods, Pod, Process
from streams.contract.rosters import roster_of
from streams.contract.series import unpack
from streams.contract.slices import JobSlice
from streams.core.core import Join, JoinSettings
from streams.core.job_keys import job_key
from tests.core.scene import START, Load, Record, Scene, Training

ONE = Training(name="one", nodes=("n1",))


def slices(records: list[Record], *, settings: JoinSettings | None = None) -> tuple[list[JobSlice], Join]:
    join = Join(settings or JoinSettings(), 0)
    return list(chain.from_iterable(join.apply(record) for record in records)), join


def written(scene: Scene) -> list[Record]:
    return [record for _, _, record in scene.in_time_order()]


def of_job(pieces: list[JobSlice]) -> list[JobSlice]:
    return [piece for piece in pieces if piece.progress is None]


def sent_by(piece: JobSlice, *, entity: int) -> list[int]:
    """An entity's bytes sent, tick by tick: 0 is the only port, 1 the job there, 2 the only suspect."""
    names = roster_of(piece.roster).feature_names
    series = unpack(piece.features, ticks=piece.ticks, entities=3, names=len(names))
    rows = zip(series.entity.tolist(), series.name.tolist(), series.values.tolist(), strict=True)
    (sent,) = [row for of, name, row in rows if of == entity and names[name] == "tx_bytes"]
    return sent


def progress(pieces: list[JobSlice]) -> list[int]:
    return [piece.progress.through_tick for piece in pieces if piece.progress is not None]


def pod(uid: str, **fields: object) -> Pod:
    return Pod(pod_uid=uid, namespace="ns", name=uid, valid_from_tick=START, **fields)  # type: ignore[arg-type]


def test_every_flush_becomes_one_slice_per_job_and_ticks_follow_each_other() -> None:
    pieces, join = slices(written(Scene(ticks=100, trainings=[ONE])))
    told = of_job(pieces)
    assert [piece.first_tick for piece in told] == list(range(START + 5, START + 100, 5))
    assert {piece.job for piece in told} == {"train/job/one"}
    assert join.counts == {"late": 1, "unpaired": 1}  # The first flush precedes the first clock


def test_progress_is_told_once_a_second_and_never_ahead_of_a_slice() -> None:
    pieces, _ = slices(written(Scene(ticks=100, trainings=[ONE])))
    told = progress(pieces)
    assert told == list(range(START - 1, START + 100, 10))
    passed = -1
    for piece in pieces:
        if piece.progress is not None:
            passed = piece.progress.through_tick
        else:
            assert piece.first_tick > passed


def test_a_slice_names_the_jobs_own_ports_and_everybody_else_on_the_node_as_suspects() -> None:
    scene = Scene(ticks=50, trainings=[ONE], loads=[Load(name="other", node="n1", tx_per_tick=7, harm=0)])
    piece = of_job(slices(written(scene))[0])[-1]
    roster = roster_of(piece.roster)
    assert [(port.device, port.used) for port in roster.ports] == [("mlx5_0", True)]
    assert [(suspect.name, suspect.namespace, suspect.device) for suspect in roster.suspects] == [
        ("other", "serve", "mlx5_0")
    ]
    assert [(member.rank, member.moves_bytes) for member in roster.communicators] == [(0, True)]
    assert sent_by(piece, entity=2) == [7] * 5


def test_a_roster_is_encoded_once_and_again_when_something_is_no_longer_seen() -> None:
    for kind in (NicCounters, NcclThroughput):
        gap = Gap(source="rdma", what="mlx5_ib_post_send", reason="the module was removed")
        changed = [
            msgspec.structs.replace(r, gaps=[gap]) if isinstance(r, kind) and r.first_tick >= START + 50 else r
            for r in written(Scene(ticks=100, trainings=[ONE]))
        ]
        told = of_job(slices(changed)[0])
        before = [piece for piece in told if piece.first_tick < START + 50]
        after = [piece for piece in told if piece.first_tick >= START + 50]
        assert (roster_of(before[0].roster).gaps, roster_of(after[0].roster).gaps) == ([], [gap])
        assert [piece.roster is before[0].roster for piece in before] == [True] * 9
        assert [piece.roster is after[0].roster for piece in after] == [True] * 10


def test_without_the_watchers_clocks_nothing_is_told_and_nothing_is_lost() -> None:
    records = written(Scene(ticks=100, trainings=[ONE]))
    silent = [record for record in records if record.watcher_clock is None]
    pieces, join = slices(silent)
    assert pieces == []
    late_clocks = [record for record in records if record.watcher_clock is not None][-3:]
    pieces = list(chain.from_iterable(join.apply(record) for record in late_clocks))
    assert len(of_job(pieces)) == 20


def test_calls_that_never_come_are_said_to_be_silent_after_three_seconds_of_the_watchers_time() -> None:
    records = [
        record
        for record in written(Scene(ticks=200, trainings=[ONE]))
        if not (isinstance(record, NcclThroughput) and record.node and record.first_tick >= START + 100)
    ]
    told = of_job(slices(records)[0])
    assert [piece.nccl_silent for piece in told] == [piece.first_tick >= START + 100 for piece in told]
    assert told[-1].first_tick == START + 165  # The last clock, 200, less 30 ticks


def test_a_silent_node_tells_its_jobs_once_and_holds_nobody_back() -> None:
    both = Training(name="both", nodes=("n1", "n2"))
    pieces, _ = slices(written(Scene(ticks=300, trainings=[both], silent={"n2": (100, 300)})))
    silent = [piece for piece in of_job(pieces) if piece.nic_silent]
    assert [(piece.node, piece.first_tick) for piece in silent] == [("n2", START + 100)]
    assert progress(pieces)[-1] == START + 299


def test_a_node_that_comes_back_is_judged_from_the_watchers_clock_on() -> None:
    both = Training(name="both", nodes=("n1", "n2"))
    pieces, join = slices(written(Scene(ticks=300, trainings=[both], silent={"n2": (100, 200)})))
    back = [piece.first_tick for piece in of_job(pieces) if piece.node == "n2" and piece.first_tick >= START + 150]
    assert back[0] == START + 205
    assert join.counts["late"] == 3  # Both nodes' first flush, and the one that came back before its clock


def test_records_of_a_retired_agent_epoch_are_dropped_and_counted() -> None:
    records = written(Scene(ticks=100, trainings=[ONE], restart_at={"n1": 50}))
    stray = next(r for r in records if isinstance(r, NicCounters) and r.node and r.first_tick == START + 40)
    _, join = slices([*records, msgspec.structs.replace(stray, first_tick=START + 100)])
    assert join.counts["retired_epoch"] == 1


def test_a_node_whose_clock_runs_far_ahead_is_dropped_and_counted() -> None:
    records = written(Scene(ticks=50, trainings=[ONE]))
    wild = next(r for r in records if isinstance(r, NicCounters) and r.node)
    pieces, join = slices([*records, msgspec.structs.replace(wild, node="n9", first_tick=START + 10_000)])
    assert join.counts["ahead"] == 1
    assert progress(pieces)[-1] == START + 49


def clock(kind: type[Record], tick: int, *, epoch: str = "w") -> Record:
    told = WatcherClock(watcher_epoch=epoch, seq=tick, tick=tick)
    if kind is NodePods:
        return NodePods(cluster="c1", node="", watcher_epoch=epoch, seq=0, as_of_tick=0, watcher_clock=told)
    span = {"agent_epoch": "", "seq": 0, "first_tick": 0, "ticks": 0, "complete_through_tick": 0}
    return kind(cluster="c1", node="", watcher_clock=told, **span)


INPUTS = [NicCounters, NcclThroughput, NodePods]


@pytest.mark.parametrize("kind", INPUTS)
def test_one_clock_years_ahead_is_dropped_and_counted_and_changes_no_slice(kind: type[Record]) -> None:
    records = written(Scene(ticks=200, trainings=[ONE]))
    expected, sound = slices(records)
    for place in (len(records) // 8, len(records) // 3, len(records) // 2):
        pieces, join = slices([*records[:place], clock(kind, START + 10**9), *records[place:]])
        assert pieces == expected
        assert join.counts == {**sound.counts, "clock_ahead": 1}


@pytest.mark.parametrize("kind", INPUTS)
def test_a_doubted_clock_is_remembered_over_a_restore(kind: type[Record]) -> None:
    join = Join(JoinSettings(), 0)
    for told, counted in ((START, 0), (START + 36_000, 1)):
        join.apply(clock(kind, told))
        assert join.counts.get("clock_ahead", 0) == counted
    join = Join.restore(JoinSettings(), 0, join.snapshot())
    join.apply(clock(kind, START + 36_010))
    assert join.counts == {"clock_ahead": 1}


def test_a_watcher_that_stays_far_ahead_is_never_believed_while_nodes_go_on() -> None:
    records = [r for r in written(Scene(ticks=300, trainings=[ONE])) if not isinstance(r, NodePods) or r.node]
    wrong = [
        msgspec.structs.replace(
            r, watcher_clock=msgspec.structs.replace(r.watcher_clock, tick=r.watcher_clock.tick + 10**6)
        )
        if isinstance(r, NicCounters) and r.watcher_clock is not None and r.watcher_clock.tick > START + 100
        else r
        for r in records
    ]
    pieces, join = slices(wrong)
    assert join.counts["clock_ahead"] == sum(before is not after for before, after in zip(records, wrong, strict=True))
    assert not [piece for piece in pieces if piece.nic_silent]


def test_after_an_outage_of_everything_the_second_clock_is_believed_and_the_first_new_flush_told() -> None:
    records = written(Scene(ticks=300, trainings=[ONE]))
    before = written(Scene(ticks=100, trainings=[ONE]))

    def later(record: Record) -> Record:
        if record.watcher_clock is not None:
            moved = msgspec.structs.replace(record.watcher_clock, tick=record.watcher_clock.tick + 50_000)
            return msgspec.structs.replace(record, watcher_clock=moved)
        if isinstance(record, NodePods):
            return msgspec.structs.replace(record, as_of_tick=record.as_of_tick + 50_000)
        return msgspec.structs.replace(record, first_tick=record.first_tick + 50_000, agent_epoch="reborn")

    pieces, join = slices([*before, *(later(record) for record in records)])
    assert join.counts["clock_ahead"] == len(INPUTS)
    told = [piece.first_tick for piece in of_job(pieces) if piece.first_tick > START + 1000 and not piece.nic_silent]
    assert told[-1] == START + 50_000 + 295
    assert progress(pieces)[-1] == START + 50_000 + 299


@pytest.mark.parametrize("kind", INPUTS)
def test_a_first_clock_has_nothing_to_be_compared_with(kind: type[Record]) -> None:
    _, join = slices([clock(kind, START + 10**8)])
    assert join.counts == {}


def test_which_clocks_are_believed_does_not_depend_on_how_the_topics_interleave() -> None:
    records = written(Scene(ticks=200, trainings=[ONE]))
    for kind, place in zip(INPUTS, (90, 140, 170), strict=True):
        records.insert(place, clock(kind, START + 10**7))
    logs = [[r for r in records if isinstance(r, kind)] for kind in INPUTS]
    told = []
    for order in permutations(logs):
        pieces, join = slices(list(chain.from_iterable(order)))
        told.append((of_job(pieces), progress(pieces)[-1], join.counts["clock_ahead"]))
    assert told[0][2] == len(INPUTS)
    assert [one == told[0] for one in told] == [True] * len(told)


def test_more_records_than_are_held_are_told_without_waiting_and_counted() -> None:
    settings = JoinSettings(held_records=10)
    records = [
        r
        for r in written(Scene(ticks=100, trainings=[ONE]))
        if not (isinstance(r, NodePods) and r.watcher_clock is not None)
    ]
    pieces, join = slices(records, settings=settings)
    assert join.counts["forced"] == 9
    assert join.held["nic-counters"] == 10
    assert len(of_job(pieces)) == 9


def test_a_new_pod_is_waited_for_so_that_its_owner_names_the_job() -> None:
    records = written(Scene(ticks=100, trainings=[ONE]))
    pods = next(r for r in records if isinstance(r, NodePods) and r.node)
    others = [r for r in records if r is not pods]
    late = next(
        n for n, r in enumerate(others) if isinstance(r, NodePods) and r.watcher_clock and r.as_of_tick == START + 50
    )
    told = of_job(slices([*others[:late], pods, *others[late:]])[0])
    assert {piece.job for piece in told} == {"train/job/one"}
    assert len(told) == 19


def test_a_pod_that_is_never_listed_gets_a_key_of_its_own_after_ten_seconds() -> None:
    records = [r for r in written(Scene(ticks=300, trainings=[ONE])) if not (isinstance(r, NodePods) and r.node)]
    told = of_job(slices(records)[0])
    assert {piece.job for piece in told} == {"pod/comm:hash-one"}
    assert told[0].first_tick == START + 5


def test_other_tenants_traffic_never_becomes_the_jobs_own() -> None:
    two = [ONE, Training(name="two", nodes=("n1",))]
    told = of_job(slices(written(Scene(ticks=50, trainings=two)))[0])
    for piece in told:
        (suspect,) = roster_of(piece.roster).suspects
        assert suspect.job == ("train/job/two" if piece.job == "train/job/one" else "train/job/one")


def test_a_snapshot_taken_between_any_two_records_changes_no_slice() -> None:
    records = written(Scene(ticks=120, trainings=[ONE], silent={"n1": (40, 90)}))
    expected, _ = slices(records)
    join, told = Join(JoinSettings(), 0), []
    for record in records:
        join = Join.restore(JoinSettings(), 0, join.snapshot())
        told.extend(join.apply(record))
    assert told == expected


def test_a_missing_tick_stays_missing_and_is_not_added_up() -> None:
    records = written(Scene(ticks=50, trainings=[ONE]))
    hole = -(2**63)
    changed: list[Record] = []
    for record in records:
        if isinstance(record, NicCounters) and record.node and record.first_tick == START + 30:
            moving = np.frombuffer(record.counters.moving_values, "<i8").reshape(-1, 5).copy()
            moving[:, 2] = hole
            counters = msgspec.structs.replace(record.counters, moving_values=moving.tobytes())
            changed.append(msgspec.structs.replace(record, counters=counters))
        else:
            changed.append(record)
    piece = next(p for p in of_job(slices(changed)[0]) if p.first_tick == START + 30)
    sent = sent_by(piece, entity=0)
    assert [value == hole for value in sent] == [False, False, True, False, False]
    assert min(sent[:2] + sent[3:]) >= 0


def test_a_jobs_key_is_its_owner_else_its_scheduler_else_its_largest_communicator_else_its_pod() -> None:
    small, large = Communicator(process=0, comm="aa", nranks=2), Communicator(process=0, comm="bb", nranks=16)
    unborn = Communicator(process=0, comm="7:0x1", nranks=None)
    owned = pod("u1", tenant="t1", job=JobRef(key="ns/job/x"))
    plain = pod("u1", tenant="t1")
    process = Process(pid=7, pod_uid="u1")
    slurm = Process(pid=7, pod_uid="u1", hints={"SLURM_JOB_ID": "42", "MASTER_ADDR": "a", "MASTER_PORT": "1"})
    master = Process(pid=7, hints={"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "a", "MASTER_PORT": "1"})
    assert job_key(slurm, owned, [large], node="n") == "ns/job/x"
    assert job_key(slurm, plain, [large], node="n") == "t1/slurm:42"
    assert job_key(master, None, [large], node="n") == "master:a:1"
    assert job_key(process, plain, [small, large], node="n") == "t1/comm:bb"
    assert job_key(process, plain, [unborn], node="n") == "pod:u1"
    assert job_key(Process(pid=7), None, [unborn], node="n") == "n/7"
