"""The flow keeps each partition's order and state, skips repeats, and turns what cannot be a record into a letter."""

from __future__ import annotations

import logging

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from streams.contract.errors import RetryableError
from streams.contract.inputs import NicCounters
from streams.contract.plumbing import DeadLetter
from streams.contract.schemas import latest
from streams.contract.slices import JobSlice
from streams.contract.topics import DEAD_LETTERS, JOB_SLICES, NIC_COUNTERS, NODE_PODS
from streams.contract.wire import Decoder, Encoder
from streams.flow import Flow, Outgoing, address
from streams.kafka_log import LogMessage
from streams.metrics import StreamMetrics
from tests.contract.examples import EXAMPLES
from tests.streams.fake_core import fake_makers

ENCODE = Encoder(NIC_COUNTERS)
PARTITIONS = 3


class AwayRegistry:
    """A registry that answers only from the second time on."""

    def __init__(self) -> None:
        self.asked = 0

    def schema_of(self, schema_id: int) -> dict[str, object]:
        self.asked += 1
        if self.asked == 1:
            raise RetryableError(f"the registry is away, and {schema_id} unknown")
        return latest("nic-counters").parsed


def make_flow(**options: object) -> Flow:
    return Flow(
        fake_makers(),
        partitions=PARTITIONS,
        metrics=StreamMetrics(CollectorRegistry()),
        **options,  # type: ignore[arg-type]
    )


def nic(offset: int, *, node: str = "a", seq: int | None = None, partition: int = 0) -> LogMessage:
    record = NicCounters(
        cluster="c",
        node=node,
        agent_epoch="e",
        seq=offset + 1 if seq is None else seq,
        first_tick=10,
        ticks=5,
        complete_through_tick=14,
    )
    return LogMessage(topic="nic-counters", partition=partition, offset=offset, key=b"a", value=ENCODE(record))


def letter(out: Outgoing) -> DeadLetter:
    assert out.topic == DEAD_LETTERS.name
    found = Decoder(DEAD_LETTERS)(out.value)
    assert isinstance(found, DeadLetter)
    return found


def piece(out: Outgoing) -> JobSlice:
    found = Decoder(JOB_SLICES)(out.value)
    assert isinstance(found, JobSlice)
    return found


def test_a_record_leads_to_its_jobs_slice_under_the_jobs_key() -> None:
    (out,) = make_flow().take(nic(0))
    assert (out.topic, out.key, out.partition) == ("job-slices", b"job-of-a", None)
    assert piece(out).seq == 1
    assert set(out.headers) == {"schema-fingerprint"}


def test_progress_goes_to_every_partition_after_the_slices_before_it() -> None:
    flow = make_flow()
    clock = EXAMPLES["nic-counters", "clock"]
    before = flow.take(nic(0, partition=1))
    after = flow.take(LogMessage(topic="nic-counters", partition=1, offset=1, key=b"", value=ENCODE(clock)))

    assert [piece(out).progress for out in before] == [None]
    assert [out.partition for out in after] == [0, 1, 2]
    assert {piece(out).progress.input_partition for out in after if piece(out).progress} == {1}  # type: ignore[union-attr]


def test_what_was_taken_already_is_skipped() -> None:
    flow = make_flow()
    first = flow.take(nic(0))
    assert first
    assert flow.take(nic(0)) == []
    assert flow.take(nic(1))
    assert flow.take(nic(0, partition=1))


def test_bytes_that_are_no_record_become_a_letter_and_the_next_message_is_taken() -> None:
    flow = make_flow()
    rubbish = LogMessage(
        topic="nic-counters", partition=2, offset=5, key=b"k", value=b"?", headers={"h": b"v"}, broker_time_ms=77
    )
    (out,) = flow.take(rubbish)

    found = letter(out)
    assert out.key == b"nic-counters/2"
    assert (found.topic, found.partition, found.offset, found.broker_time_ms) == ("nic-counters", 2, 5, 77)
    assert (found.key, found.value, found.headers, found.component) == (b"k", b"?", {"h": b"v"}, "stream")
    assert flow.take(nic(6, partition=2))
    assert flow.failures == 0


@pytest.mark.parametrize(
    ("node", "failures", "reason"), [("bad", 0, "the node is bad"), ("worse", 1, "the node is worse")]
)
def test_a_record_that_a_step_refuses_or_chokes_on_becomes_a_letter(
    node: str, failures: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    flow = make_flow()
    slice_ = JobSlice(cluster="c", job="j", node=node, seq=10)
    value = Encoder(JOB_SLICES)(slice_)
    (out,) = flow.take(LogMessage(topic="job-slices", partition=0, offset=0, key=b"j", value=value))

    assert letter(out).reason.endswith(reason)
    assert letter(out).value == value
    assert flow.failures == failures


def test_while_a_registry_is_away_nothing_changes_and_the_same_message_can_be_taken_again() -> None:
    flow = make_flow(registry=AwayRegistry())
    message = nic(0)
    registered = LogMessage(
        topic="nic-counters", partition=0, offset=0, key=b"a", value=b"\0\0\0\0\x09" + (message.value or b"")[5:]
    )
    with pytest.raises(RetryableError):
        flow.take(registered)
    assert flow.is_cold("nic-counters", 0)
    assert len(flow.take(registered)) == 1


def test_a_partition_that_went_away_begins_cold_when_it_comes_back() -> None:
    flow = make_flow()
    for topic in ("nic-counters", "nccl-throughput", "node-pods", "job-slices"):
        assert flow.is_cold(topic, 0)
    flow.take(nic(0))
    flow.take(nic(0, partition=1))
    assert not flow.is_cold("node-pods", 0)
    assert flow.is_cold("job-slices", 0)

    flow.hold({("nic-counters", 1), ("nccl-throughput", 1), ("node-pods", 1)})

    assert flow.is_cold("nic-counters", 0)
    assert not flow.is_cold("nic-counters", 1)
    assert flow.take(nic(0, partition=1)) == []
    assert flow.take(nic(0))


def test_counts_are_summed_over_partitions() -> None:
    flow = make_flow()
    pods = Encoder(NODE_PODS)(EXAMPLES["node-pods", "node"])
    for partition in (0, 1, 2):
        flow.take(LogMessage(topic="node-pods", partition=partition, offset=0, value=pods))
    assert flow.counts() == {"join": {"late_ticks": 3}}


def test_records_travel_under_a_registrys_id_where_there_is_one() -> None:
    (out,) = make_flow(registered_ids={"job-slices": 12}).take(nic(0))
    assert out.value[:5] == b"\0\0\0\0\x0c"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (("job-slices", "slice"), ("job-slices", b"research/PyTorchJob/llm")),
        (("episodes", "confirmed"), ("episodes", b"7a0c1d5e-0000-5000-8000-000000000001")),
        (("job-states", "slow"), ("job-states", b"research/PyTorchJob/llm")),
        (("incidents", "confirmed"), ("incidents", b"7a0c1d5e-0000-5000-8000-000000000001")),
        (("dead-letters", "rubbish"), ("dead-letters", b"nic-counters/3")),
    ],
)
def test_each_result_has_its_topic_and_key(key: tuple[str, str], expected: tuple[str, bytes]) -> None:
    topic, message_key = address(EXAMPLES[key])
    assert (topic.name, message_key) == expected


def test_what_no_topic_carries_is_a_mistake_of_ours() -> None:
    class Other(msgspec.Struct):
        pass

    with pytest.raises(TypeError, match="no topic carries a Other"):
        address(Other())


def test_findings_follow_from_findings() -> None:
    flow = make_flow()
    slice_ = JobSlice(cluster="c", job="j", node="a", seq=10, first_tick=50)
    out = flow.take(LogMessage(topic="job-slices", partition=0, offset=0, value=Encoder(JOB_SLICES)(slice_)))
    assert [o.topic for o in out] == ["episodes", "job-states"]
    (incident,) = flow.take(LogMessage(topic="episodes", partition=0, offset=0, value=out[0].value))
    assert incident.topic == "incidents"
    assert flow.take(LogMessage(topic="job-states", partition=0, offset=0, value=out[1].value)) == []
