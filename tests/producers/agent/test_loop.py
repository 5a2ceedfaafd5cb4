"""The agent's loop: exact ticks, late ticks missing, steps of the clock a new epoch, every missing source a gap."""

import threading
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from producers.clock import Moment
from producers.kernel.rdma_decode import HolderCounters
from producers.loop import STALL_TICKS, Agent, Sources
from producers.nccl_flush import NcclTally
from producers.nccl_worker import NcclTaken
from producers.ports.flush import PortInfo, PortsFlush
from producers.publish import PublishCounts
from producers.rdma_flush import RdmaTally
from producers.time_service import ClockError
from producers.write import RecordWriter
from streams.contract import series
from streams.contract.calls import Column, unpack_rows
from streams.contract.header import About, Gap, Rung, Source
from streams.contract.inputs import Holder, NcclThroughput, NicCounters, Process
from streams.contract.plumbing import HealthStatus, PipelineHealth
from streams.contract.series import MISSING
from streams.contract.ticks import us_of_tick
from streams.contract.topics import BY_NAME
from streams.contract.wire import Decoder
from tests.producers.agent.makers import call, counters

T = 17_960_000_000


class Clocks:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.now = Moment(wall_us=us_of_tick(T - 1) + 20_000, monotonic_us=5_000_000)

    def __call__(self) -> Moment:
        return self.now

    def at(self, tick: int, after_us: int = 1_000) -> Moment:
        """The moment so long after a tick's beginning, both clocks moved alike."""
        moved_us = us_of_tick(tick) + after_us - self.now.wall_us
        self.now = Moment(wall_us=self.now.wall_us + moved_us, monotonic_us=self.now.monotonic_us + moved_us)
        return self.now


class FakePorts:
    def __init__(self) -> None:
        self.sampled: list[int] = []
        self.first: int | None = None
        self.closed = False
        self.error: OSError | None = None

    def sample(self, tick: int) -> None:
        if self.error is not None:
            raise self.error
        self.sampled.append(tick)
        self.first = tick if self.first is None else self.first

    def flush(self, last_tick: int) -> PortsFlush:
        first = last_tick if self.first is None else self.first
        ticks = range(first, last_tick + 1)
        self.first = last_tick + 1
        port = PortInfo(
            device="mlx5_0", port=1, netdev=None, link_layer=None, state="ACTIVE", phys_state="LinkUp",
            rate_mbps=400_000, capacity_mbps=400_000, capacity_source="rate",
        )  # fmt: skip
        return PortsFlush(
            first_tick=first,
            ports=(port,),
            names=("ib/port_xmit_data",),
            entity=np.array([0], np.int32),
            name=np.array([0], np.int32),
            values=np.array([[tick - T if tick in self.sampled else MISSING for tick in ticks]], np.int64),
            resets=(),
            spans=(),
            gaps=(),
        )

    def close(self) -> None:
        self.closed = True


class FakeRdma:
    lost = 3

    def __init__(self) -> None:
        self.created = 0

    def sample(self) -> list[HolderCounters]:
        self.created += 2
        return [counters(1, qp_created=self.created, qp_live=self.created, bytes_sent=0, packets_sent=0)]

    def close(self) -> None:
        pass


class FakeNccl:
    def take(self, last_tick: int, timeout_s: float) -> NcclTaken:
        assert timeout_s < 0.05
        gap = Gap(source="nccl", what="libx", reason="why")
        rows = [call(last_tick)]
        return NcclTaken(
            rows=rows, gaps=[gap], libraries=["/lib/libnccl.so.2"], lost_events=4, probes_attached=30, probes_wanted=31
        )

    def close(self) -> None:
        pass


class Sent:
    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.records: list[msgspec.Struct] = []

    def publish(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        partition: int | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        assert partition is None
        assert headers
        self.keys.append(key)
        self.records.append(Decoder(BY_NAME[topic])(value))

    @property
    def nic(self) -> list[NicCounters]:
        return [record for record in self.records if isinstance(record, NicCounters)]

    @property
    def nccl(self) -> list[NcclThroughput]:
        return [record for record in self.records if isinstance(record, NcclThroughput)]

    @property
    def health(self) -> list[PipelineHealth]:
        return [record for record in self.records if isinstance(record, PipelineHealth)]


class Rig:
    """An agent with hands on its clock and its sources."""

    def __init__(self, sources: Sources | None = None, flush_ticks: int = 5) -> None:
        self.clocks, self.sent, self.ports = Clocks(), Sent(), FakePorts()
        self.opened: list[FakePorts] = []
        self.counts = PublishCounts()
        epochs = iter(["first", "second", "third"])
        self.agent = Agent(
            sources or Sources(open_ports=self.open),
            RecordWriter(self.sent),
            cluster="c",
            node="node-a",
            flush_ticks=flush_ticks,
            publish_counts=lambda: self.counts,
            clocks=self.clocks,
            new_epoch=lambda: next(epochs),
            read_clock_error=lambda: ClockError(offset_us=-7, max_error_us=250),
        )

    def open(self) -> FakePorts:
        self.opened.append(FakePorts())
        self.ports = self.opened[-1]
        return self.ports

    def wake_after(self, *ticks: int) -> None:
        for tick in ticks:
            self.agent.wake(self.clocks.at(tick + 1))


def xmit(record: NicCounters) -> list[int]:
    rows = series.unpack(record.counters, ticks=record.ticks, entities=len(record.ports), names=1)
    return rows.values[0].tolist()


def test_each_tick_is_read_just_after_its_end_and_five_make_a_pair_of_records() -> None:
    rig = Rig()
    assert rig.agent.seconds_until_due() == pytest.approx(0.180)
    rig.wake_after(*range(T, T + 10))
    assert rig.ports.sampled == list(range(T, T + 10))
    for place, (nic, nccl) in enumerate(zip(rig.sent.nic, rig.sent.nccl, strict=True)):
        for record in (nic, nccl):
            assert (record.seq, record.first_tick, record.ticks) == (place + 1, T + 5 * place, 5)
            assert record.complete_through_tick == T + 5 * place + 4
            assert (record.cluster, record.node, record.agent_epoch) == ("c", "node-a", "first")
            assert record.source is Source.KERNEL
            assert record.clock is not None
            assert (record.clock.offset_us, record.clock.max_error_us) == (-7, 250)
            assert record.clock.monotonic_us == 5_080_000 + 500_000 * place
        assert xmit(nic) == list(range(5 * place, 5 * place + 5))
    assert len(rig.sent.nic) == 2
    assert set(rig.sent.keys) - {b"agent/node-a"} == {b"node-a"}


def test_a_late_tick_is_missing_and_the_next_ones_keep_their_places() -> None:
    rig = Rig()
    rig.wake_after(T)
    rig.agent.wake(rig.clocks.at(T + 3, after_us=60_000))  # T+1 and T+2 ended, both too long ago
    rig.wake_after(T + 3, T + 4)
    assert rig.ports.sampled == [T, T + 3, T + 4]
    assert xmit(rig.sent.nic[0]) == [0, MISSING, MISSING, 3, 4]
    assert rig.agent.late_ticks == 2


def test_waking_up_to_half_a_tick_late_still_counts() -> None:
    rig = Rig()
    rig.agent.wake(rig.clocks.at(T + 1, after_us=50_000))
    assert rig.ports.sampled == [T]
    rig.agent.wake(rig.clocks.at(T + 2, after_us=50_001))
    assert rig.ports.sampled == [T]


@pytest.mark.parametrize("step_us", [-3_600_000_000, -100_001, 100_001, 86_400_000_000])
def test_a_step_of_the_wall_clock_over_a_tick_begins_a_new_epoch(step_us: int) -> None:
    rig = Rig()
    rig.wake_after(T, T + 1)
    before = rig.clocks.at(T + 3)
    rig.clocks.now = Moment(wall_us=before.wall_us + step_us, monotonic_us=before.monotonic_us)
    with capture_logs() as lines:
        rig.agent.wake(rig.clocks.now)
    assert [line["event"] for line in lines] == ["new agent epoch", "agent epoch begins"]
    begun_tick = (before.wall_us + step_us) // 100_000 + 1
    rig.wake_after(*range(begun_tick, begun_tick + 5))
    told = [(record.agent_epoch, record.seq, record.first_tick, record.ticks) for record in rig.sent.nic]
    assert told == [("first", 1, T, 2), ("second", 1, begun_tick, 5)]
    assert [ports.closed for ports in rig.opened] == [True, False], "ticks that go back need a new sampler"


def test_a_slew_is_no_step() -> None:
    rig = Rig()
    for tick in range(T, T + 20):
        now = rig.clocks.at(tick + 1)
        rig.clocks.now = Moment(wall_us=now.wall_us, monotonic_us=now.monotonic_us - 50 * (tick - T))
        rig.agent.wake(rig.clocks.now)
    assert {record.agent_epoch for record in rig.sent.nic} == {"first"}


def test_a_long_stall_begins_a_new_epoch_instead_of_telling_empty_flushes() -> None:
    rig = Rig()
    rig.wake_after(T)
    rig.agent.wake(rig.clocks.at(T + 2 + STALL_TICKS))
    told = [(record.agent_epoch, record.first_tick, record.ticks) for record in rig.sent.nic]
    assert told == [("first", T, 1)]
    assert rig.agent.late_ticks == STALL_TICKS + 1


def test_without_any_source_both_records_are_still_written_and_say_why() -> None:
    gap, other = Gap(source="rdma_objects", what="all", reason="no"), Gap(source="nccl", what="all", reason="none")
    rig = Rig(Sources(gaps=[gap], nccl_gaps=[other], missing=["RDMA objects: no"]))
    rig.wake_after(*range(T, T + 5))
    (nic,), (nccl,) = rig.sent.nic, rig.sent.nccl
    assert (nic.ports, nic.holders, nic.gaps) == ([], [], [gap])
    assert (nccl.processes, nccl.rows, nccl.gaps) == ([], b"", [other])
    assert rig.sent.health[0].status is HealthStatus.DEGRADED
    assert rig.sent.health[0].message == "RDMA objects: no"


def test_holders_and_calls_travel_with_their_ticks() -> None:
    about = About(agent="a", kernel="k", libnccl=["/lib/libnccl.so.2"])
    rig = Rig(
        Sources(
            rdma=FakeRdma(),
            rdma_tally=RdmaTally(lambda one: Holder(pod_uid="pod", comm=one.comm)),
            nccl=FakeNccl(),
            nccl_tally=NcclTally(lambda pid, cgroup_id: Process(pid=pid, cgroup_id=cgroup_id)),
            probes_wanted=2,
            probes_attached=1,
            about=lambda _libraries: about,
        )
    )
    rig.wake_after(*range(T, T + 10))
    nic, nccl = rig.sent.nic[0], rig.sent.nccl[0]
    assert nic.holders == [Holder(pod_uid="pod", comm="p1")]
    assert nic.devices == ["rxe0"]
    rows = series.unpack(nic.features, ticks=5, entities=1, names=len(nic.feature_names))
    live = rows.values[rows.name == nic.feature_names.index("qp_live")][0]
    assert live.tolist() == [2, 4, 6, 8, 10]
    assert nic.bytes_rung is Rung.KERNEL_PROBES
    assert (nic.lost_events, nccl.lost_events) == (3, 4)
    calls = unpack_rows(nccl.rows, communicators=1, ticks=5)
    assert calls[:, [Column.TICK_OFFSET, Column.CALLS]].tolist() == [[4, 1]]
    assert [gap.reason for gap in nccl.gaps] == ["why"]
    assert [record.about for record in rig.sent.nic] == [about, None], "told once, not with every flush"
    health = rig.sent.health[-1]
    assert (health.probes_wanted, health.probes_attached) == (33, 31)
    assert health.status is HealthStatus.DEGRADED, "lost events are not well"


def test_a_source_that_fails_is_a_gap_and_an_error_count_and_sampling_goes_on() -> None:
    rig = Rig()
    rig.wake_after(T)
    rig.ports.error = OSError(5, "Input/output error")
    rig.wake_after(T + 1)
    rig.ports.error = None
    rig.wake_after(T + 2, T + 3, T + 4)
    assert [(gap.source, gap.reason) for gap in rig.sent.nic[0].gaps] == [("ports", "[Errno 5] Input/output error")]
    assert xmit(rig.sent.nic[0]) == [0, MISSING, 2, 3, 4]
    assert rig.agent.values["agent_source_errors"] == {"ports": 1}


def test_stopping_flushes_the_ticks_that_were_read() -> None:
    rig = Rig()
    rig.wake_after(T, T + 1, T + 2)
    stop = threading.Event()
    stop.set()
    rig.agent.run(stop)
    assert [(record.first_tick, record.ticks) for record in rig.sent.nic] == [(T, 3)]
    assert rig.opened[0].closed


def test_health_comes_every_five_seconds_and_says_when_the_broker_is_away() -> None:
    rig = Rig()
    rig.wake_after(*range(T, T + 60))
    rig.counts = PublishCounts(away=True, dropped=7)
    rig.wake_after(*range(T + 60, T + 110))
    assert [record.us for record in rig.sent.health] == [us_of_tick(T + 5 + 50 * n) + 1_000 for n in range(3)]
    assert [record.status for record in rig.sent.health] == [HealthStatus.OK, HealthStatus.OK, HealthStatus.DEGRADED]
    assert rig.sent.health[-1].counts["dropped"] == 7
    assert {(record.component, record.instance) for record in rig.sent.health} == {("agent", "node-a")}
