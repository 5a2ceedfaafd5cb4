"""A recording gives back what was recorded, in an order that changes no partition's own."""

from __future__ import annotations

import json
import random
from pathlib import Path

import fastavro
import pytest

from streams.contract.findings import Incident
from streams.contract.inputs import NicCounters
from streams.contract.topics import NIC_COUNTERS
from streams.kafka_log import LogMessage
from streams.recording import Recorded, Recorder, RecordingError, RunInfo, merge_by_time, read_recording, run_info
from streams.replay import ReplayResult, apply_all

RUN = RunInfo(version="test", cluster="c", partitions=2)


def nic(node: str, seq: int) -> NicCounters:
    return NicCounters(
        cluster="c",
        node=node,
        agent_epoch="e",
        seq=seq,
        first_tick=seq * 5,
        ticks=5,
        complete_through_tick=seq * 5 + 4,
    )


def message(partition: int, offset: int, time_ms: int, value: bytes | None = None) -> LogMessage:
    return LogMessage(
        topic="nic-counters",
        partition=partition,
        offset=offset,
        broker_time_ms=time_ms,
        key=b"n",
        value=value,
        headers={"h": b"1"},
    )


class SeqCore:
    """Tells the sequence numbers that it was given, as incidents of growing revisions."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    def apply(self, topic: str, partition: int, record: object, /) -> list[Incident]:
        assert isinstance(record, NicCounters)
        self.seen.append((topic, partition, record.seq))
        return [
            Incident(
                incident_id=record.node, revision=record.seq, cluster="c", onset_tick=1, decided_tick=1, as_of_tick=1
            )
        ]


def test_a_recording_replays_to_the_last_revision_of_each_finding(tmp_path: Path) -> None:
    with Recorder(tmp_path, RUN) as recorder:
        for seq in range(1, 6):
            recorder.write(message(0, seq, 1000 + seq), nic("a", seq))
        recorder.write(message(0, 6, 1006, b"rubbish"), None)

    core = SeqCore()
    result = ReplayResult(run=run_info(tmp_path))
    apply_all(read_recording(tmp_path), core, result)

    assert [seq for _, _, seq in core.seen] == [1, 2, 3, 4, 5]
    assert [(i.incident_id, i.revision) for i in result.incidents_by_onset()] == [("a", 5)]
    assert result.records == 6
    assert [(letter.offset, letter.value) for letter in result.dead_letters] == [(6, b"rubbish")]
    assert (result.run.records, result.run.unreadable) == ({"nic-counters": 6}, {"nic-counters": 1})


def test_any_avro_reader_sees_the_topics_own_fields(tmp_path: Path) -> None:
    with Recorder(tmp_path, RUN) as recorder:
        recorder.write(message(1, 7, 1000), nic("a", 3))

    with (tmp_path / "nic-counters.avro").open("rb") as file:
        (entry,) = list(fastavro.reader(file))

    assert (entry["partition"], entry["offset"], entry["broker_time_ms"], entry["key"]) == (1, 7, 1000, b"n")
    assert (entry["value"]["node"], entry["value"]["seq"], entry["headers"]) == ("a", 3, {"h": b"1"})


def test_run_json_says_what_made_it(tmp_path: Path) -> None:
    with Recorder(tmp_path, RunInfo(version="1.2.3", cluster="c", partitions=4, settings={"flush": 5})) as recorder:
        recorder.write(message(0, 0, 1), nic("a", 1))
        recorder.end("2026-01-01T00:00:00.000Z")

    said = json.loads((tmp_path / "run.json").read_text())
    assert (said["version"], said["partitions"], said["settings"]) == ("1.2.3", 4, {"flush": 5})
    assert (said["ended"], said["records"]) == ("2026-01-01T00:00:00.000Z", {"nic-counters": 1})


def test_a_second_recording_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    with Recorder(tmp_path, RUN) as recorder:
        recorder.write(message(0, 0, 1), nic("a", 1))

    with pytest.raises(RecordingError, match="already holds a recording"):
        Recorder(tmp_path, RUN).__enter__()


def test_a_folder_that_is_no_recording_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="is no recording"):
        run_info(tmp_path)


def test_a_torn_file_says_where_it_ends_instead_of_replaying_a_part(tmp_path: Path) -> None:
    with Recorder(tmp_path, RUN) as recorder:
        for seq in range(1, 2000):
            recorder.write(message(0, seq, seq), nic("a", seq))
    whole = (tmp_path / "nic-counters.avro").read_bytes()
    (tmp_path / "nic-counters.avro").write_bytes(whole[: len(whole) // 2])

    with pytest.raises(RecordingError, match="cannot be read on"):
        list(read_recording(tmp_path))


@pytest.mark.parametrize("window", [1, 7, 10_000])
def test_merging_never_changes_the_order_inside_a_partition(window: int) -> None:
    rng = random.Random(7)
    streams = []
    for topic in ("nic-counters", "nccl-throughput", "node-pods"):
        offsets = [0, 0, 0]
        stream = []
        for _ in range(300):
            partition = rng.randrange(3)
            time_ms = 1000 + offsets[partition] * 10 + rng.randrange(-50, 50)  # A producer's clock may step back
            stream.append(
                LogMessage(topic=topic, partition=partition, offset=offsets[partition], broker_time_ms=time_ms)
            )
            offsets[partition] += 1
        streams.append(stream)

    merged = merge_by_time([iter([Recorded(message=m, record=None) for m in s]) for s in streams], window=window)

    places: dict[tuple[str, int], list[int]] = {}
    for item in merged:
        places.setdefault((item.message.topic, item.message.partition), []).append(item.message.offset)
    assert sum(map(len, places.values())) == 900
    assert all(found == list(range(len(found))) for found in places.values())


def test_a_backlog_fetched_partition_by_partition_comes_back_in_the_brokers_order() -> None:
    fetched = [message(p, i, 1000 + 10 * i + p) for p in range(3) for i in range(50)]

    times = [
        r.message.broker_time_ms for r in merge_by_time([iter([Recorded(message=m, record=None) for m in fetched])])
    ]

    assert times == sorted(times)


def test_the_later_revision_holds_whichever_comes_last() -> None:
    result = ReplayResult(run=RUN)
    for revision in (1, 3, 2):
        result.take(
            Incident(incident_id="i", revision=revision, cluster="c", onset_tick=1, decided_tick=1, as_of_tick=1)
        )
    assert result.incidents["i"].revision == 3


def test_the_topic_of_a_recording_is_the_one_it_was_read_from(tmp_path: Path) -> None:
    with Recorder(tmp_path, RUN) as recorder:
        recorder.write(message(0, 0, 1), nic("a", 1))
    (item,) = list(read_recording(tmp_path))
    assert (item.message.topic, item.record) == (NIC_COUNTERS.name, nic("a", 1))
