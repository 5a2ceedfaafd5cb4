"""A simulated cluster is honest: reproducible, labelled, consistent with itself and with its own truth."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from confluent_kafka import Consumer, TopicPartition

from fabric_sentinel.broker import EmbeddedBroker
from producers.pods.clock_records import CLOCK_KEY
from producers.simulate.run import SimulateSettings, run
from producers.simulate.scenario import demo_scenario, pod_uid
from producers.simulate.sharing import Demand, share
from producers.simulate.story import Addressed, records
from producers.simulate.truth import truth
from streams.contract import series
from streams.contract.calls import Column, unpack_rows
from streams.contract.header import Source
from streams.contract.inputs import NcclThroughput, NicCounters, NodePods
from streams.contract.topics import INPUTS, NCCL_THROUGHPUT, NIC_COUNTERS, PIPELINE_HEALTH
from streams.contract.wire import Decoder, Encoder

START = 17_000_000_000
SECONDS = 70


@pytest.fixture(scope="module")
def told() -> list[Addressed]:
    return list(records(1, START, SECONDS, partitions=2))


def nic(told: Iterable[Addressed], node: str) -> list[NicCounters]:
    return [one.record for one in told if isinstance(one.record, NicCounters) and one.record.node == node]


def nccl(told: Iterable[Addressed], node: str) -> list[NcclThroughput]:
    return [one.record for one in told if isinstance(one.record, NcclThroughput) and one.record.node == node]


def port_series(found: list[NicCounters], device: str, name: str) -> list[int]:
    values: list[int] = []
    for record in found:
        index = [port.device for port in record.ports].index(device)
        rows = series.unpack(
            record.counters, ticks=record.ticks, entities=len(record.ports), names=len(record.counter_names)
        )
        wanted = (rows.entity == index) & (rows.name == record.counter_names.index(name))
        values += rows.values[wanted][0].tolist()
    return values


def holder_series(found: list[NicCounters], pod: str, name: str) -> list[int | None]:
    values: list[int | None] = []
    for record in found:
        high, _ = series.unpack_pairs(record.holdings)
        place = [p for p, owner in enumerate(high) if record.holders[owner].pod_uid == pod]
        if not place:
            values += [None] * record.ticks
            continue
        rows = series.unpack(record.features, ticks=record.ticks, entities=len(high), names=len(record.feature_names))
        wanted = (rows.entity == place[0]) & (rows.name == record.feature_names.index(name))
        values += rows.values[wanted][0].tolist()
    return values


def test_equal_seeds_tell_equal_stories_and_others_do_not(told: list[Addressed]) -> None:
    assert list(records(1, START, SECONDS, partitions=2)) == told
    assert list(records(2, START, 20, partitions=2)) != told[: len(list(records(2, START, 20)))]


def test_every_record_fits_its_schema_and_says_that_it_is_simulated(told: list[Addressed]) -> None:
    encoders = {topic.name: Encoder(topic) for topic in INPUTS}
    decoders = {topic.name: Decoder(topic) for topic in INPUTS}
    for one in told:
        assert one.record.source is Source.SIMULATED
        assert decoders[one.topic.name](encoders[one.topic.name](one.record)) == one.record


def test_each_flush_has_both_records_and_ticks_follow_without_a_hole(told: list[Addressed]) -> None:
    for node in demo_scenario().nodes:
        pairs = list(zip(nic(told, node), nccl(told, node), strict=True))
        assert len(pairs) == (SECONDS * 10 - 10) // 5
        for place, (ports, calls) in enumerate(pairs):
            assert (ports.seq, ports.first_tick, ports.ticks) == (place + 1, START + 5 * place, 5)
            same = ("cluster", "node", "agent_epoch", "seq", "first_tick", "ticks", "complete_through_tick", "clock")
            assert all(getattr(ports, name) == getattr(calls, name) for name in same)
        assert [place for place, (ports, _) in enumerate(pairs) if ports.about is not None] == [0]


def test_a_clock_record_each_second_goes_to_every_partition_of_every_input(told: list[Addressed]) -> None:
    clocks = [one for one in told if one.partition is not None]
    assert Counter((one.topic.name, one.partition) for one in clocks) == {
        (topic.name, partition): SECONDS for topic in INPUTS for partition in range(2)
    }
    ticks = [one.record.watcher_clock.tick for one in clocks if (one.topic, one.partition) == (NIC_COUNTERS, 1)]
    assert ticks == list(range(START, START + SECONDS * 10, 10))
    assert all(one.record.node == "" and one.key == CLOCK_KEY for one in clocks)  # a compacted topic wants keys


def test_holders_bytes_make_up_the_ports_bytes_and_never_more_than_it_carries(told: list[Addressed]) -> None:
    found = nic(told, "sim-node-a")
    scenario = demo_scenario()
    pods = [
        *(pod_uid(job.namespace, pod) for job in scenario.jobs[:2] for pod in job.pod_names("sim-node-a")),
        *(pod_uid(load.namespace, load.name) for load in scenario.loads if load.device == "mlx5_0"),
    ]
    sent = np.array([[value or 0 for value in holder_series(found, pod, "tx_bytes")] for pod in pods]).sum(axis=0)
    words = np.array(port_series(found, "mlx5_0", "ib/port_xmit_data"))
    assert np.abs(words * 4 - sent * 1.02).max() <= 4
    assert words.max() * 4 <= 5_000_000_000  # 400 Gb/s for 100 ms
    busy = words[401:599] * 4 / 5_000_000_000
    assert busy.min() > 0.95, "the flooded port is full in every tick"


def test_the_culprits_objects_and_bytes_exist_only_while_it_is_active(told: list[Addressed]) -> None:
    story = truth(1, START)
    found = nic(told, story.node)
    bytes_sent = holder_series(found, story.pod_uid, "tx_bytes")
    pairs = holder_series(found, story.pod_uid, "qp_live")
    assert [tick for tick, value in enumerate(bytes_sent) if value] == list(range(400, 600))
    assert [tick for tick, value in enumerate(pairs) if value] == list(range(400, 600))
    assert bytes_sent[335] is None, "before the pod exists it has no row: absent, not zero"
    assert bytes_sent[365] == 0


def iteration_us(found: list[NcclThroughput], comm_rank: int) -> list[tuple[int, int]]:
    """(begin tick, microseconds to the next) of one rank's gradient calls."""
    starts: list[tuple[int, int]] = []
    for record in found:
        rows = unpack_rows(record.rows, communicators=len(record.communicators), ticks=record.ticks)
        starts += [
            (record.first_tick, record.first_tick * 100_000 + int(row[Column.FIRST_US]))
            for row in rows[rows[:, Column.BYTES] > 4]
            if record.communicators[row[Column.COMMUNICATOR]].rank == comm_rank
        ]
    return [(tick, after - before) for (tick, before), (_, after) in itertools.pairwise(starts)]


def test_calls_show_the_loss_that_the_truth_states(told: list[Addressed]) -> None:
    story = truth(1, START)
    lengths = iteration_us(nccl(told, "sim-node-b"), 8)  # only the big job has ranks there: 8 to 15
    quiet = np.mean([length for tick, length in lengths if START + 20 <= tick < START + 390])
    slow = np.mean([length for tick, length in lengths if START + 410 <= tick < START + 590])
    assert 10_000 * (1 - quiet / slow) == pytest.approx(story.losses_e4["team-llm/PyTorchJob/pretrain"], abs=60)


def test_in_quiet_times_iterations_vary_by_about_a_percent(told: list[Addressed]) -> None:
    lengths = [length for tick, length in iteration_us(nccl(told, "sim-node-c"), 0) if tick < START + 390]
    assert len(lengths) > 30
    assert 0.004 < np.std(lengths) / np.mean(lengths) < 0.02


def test_truth_names_one_culprit_two_victims_and_a_job_that_slows_itself() -> None:
    story = truth(1, START)
    assert (story.namespace, story.pod, story.node, story.device) == ("data-eng", "bulk-export", "sim-node-a", "mlx5_0")
    assert (story.onset_tick, story.end_tick) == (START + 400, START + 600)
    assert set(story.losses_e4) == {"team-llm/PyTorchJob/pretrain", "team-vision/PyTorchJob/detector"}
    assert all(2_000 < loss < 3_500 for loss in story.losses_e4.values())
    assert story.self_slow_job == "team-chat/PyTorchJob/finetune"
    assert story.self_slow_loss_e4 > 2_500
    assert story.pod_uid not in story.innocent


def test_a_late_rank_makes_others_wait_but_the_fastest_call_stays_as_fast() -> None:
    story = list(records(1, START, 88))
    fastest: dict[bool, list[int]] = {False: [], True: []}
    longest: list[int] = []
    for record in nccl(story, "sim-node-c"):
        rows = unpack_rows(record.rows, communicators=len(record.communicators), ticks=record.ticks)
        big = rows[rows[:, Column.BYTES] > 4]
        for seq in np.unique(big[:, Column.FIRST_SEQ]):
            ranks = big[big[:, Column.FIRST_SEQ] == seq]
            if len(ranks) == 8:
                is_slow = START + 670 <= record.first_tick < START + 790
                fastest[is_slow].append(int(ranks[:, Column.MIN_US].min()))
                longest += [int(ranks[:, Column.MAX_US].max())] if is_slow else []
    assert np.median(fastest[True]) == pytest.approx(np.median(fastest[False]), rel=0.01)
    assert np.median(fastest[False]) == pytest.approx(80_000, rel=0.01), "2 GB at 200 Gb/s"
    assert np.median(longest) > 300_000, "the others wait for half of the compute time"


def test_pod_lists_follow_the_culprits_life(told: list[Addressed]) -> None:
    story = truth(1, START)
    lists = [one.record for one in told if isinstance(one.record, NodePods) and one.record.node == "sim-node-a"]
    lives = [
        [
            (pod.valid_from_tick - START, pod.valid_to_tick and pod.valid_to_tick - START)
            for pod in record.pods
            if pod.pod_uid == story.pod_uid
        ]
        for record in lists
    ]
    assert [record.as_of_tick - START for record in lists] == [0, 340, 680]
    assert lives == [[], [(340, None)], [(340, 680)]]
    assert {record.facts.gpu_hour_price_micros for record in lists} == {2_500_000}


def test_shares_of_a_port_are_max_min_fair_by_queue_pairs() -> None:
    wants = {
        "small": Demand(bytes_per_s=10, queue_pairs=1),
        "job": Demand(bytes_per_s=100, queue_pairs=2),
        "flood": Demand(bytes_per_s=1000, queue_pairs=8),
        "idle": Demand(bytes_per_s=0, queue_pairs=8),
    }
    assert share(110, wants) == {"small": 10, "job": 20, "flood": 80}
    assert share(2000, wants) == {"small": 10, "job": 100, "flood": 1000}
    assert sum(share(37.5, wants).values()) == pytest.approx(37.5)


def test_a_live_run_writes_what_the_story_tells_at_the_wall_clocks_pace() -> None:
    topics = {topic.name: 2 for topic in INPUTS} | {PIPELINE_HEALTH.name: 1}
    with EmbeddedBroker(topics) as broker:
        stop = threading.Event()
        settings = SimulateSettings(kafka={"bootstrap.servers": broker.bootstrap}, seed=3, partitions=2)
        before_tick = int(time.time() * 10)
        worker = threading.Thread(target=run, args=(settings, stop))
        worker.start()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "r", "enable.auto.commit": False})
        consumer.assign([TopicPartition(NCCL_THROUGHPUT.name, partition, 0) for partition in range(2)])
        found: list[NcclThroughput] = []
        deadline = time.monotonic() + 20
        while sum(record.node != "" for record in found) < 9 and time.monotonic() < deadline:
            found += [Decoder(NCCL_THROUGHPUT)(message.value()) for message in consumer.consume(100, 0.2)]
        stop.set()
        worker.join(15)
        consumer.close()
    assert not worker.is_alive()
    flushes = sorted((record for record in found if record.node), key=lambda record: (record.node, record.seq))
    start_tick = flushes[0].first_tick
    assert before_tick <= start_tick <= before_tick + 30
    expected = {
        (one.record.node, one.record.seq): one.record
        for one in records(3, start_tick, 10)
        if isinstance(one.record, NcclThroughput) and one.record.node
    }
    assert len(flushes) >= 9
    assert all(record == expected[record.node, record.seq] for record in flushes)
