"""The node agent's loop: sample on the wall clock's 100 ms grid, flush a few ticks to both node topics."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Protocol

import structlog

from producers.clock import Moment, ReadClocks, StepWatch, read_clocks
from producers.encode import Flush, bounded_gaps, nccl_throughput, nic_counters, no_calls
from producers.kernel.rdma_decode import HolderCounters
from producers.nccl_flush import NcclTally
from producers.nccl_worker import NcclTaken
from producers.ports.flush import PortsFlush
from producers.publish import PublishCounts
from producers.rdma_flush import RdmaTally
from producers.time_service import ClockError, clock_error
from producers.write import RecordWriter
from streams.contract.header import About, Clock, Gap, Rung, Source
from streams.contract.plumbing import HealthStatus, PipelineHealth
from streams.contract.ticks import TICK_US, us_of_tick
from streams.contract.topics import NCCL_THROUGHPUT, NIC_COUNTERS, PIPELINE_HEALTH

# A reading taken this late after its tick's end holds too much of the next tick: the tick is missing instead.
LATE_US = TICK_US // 2
# After a longer stall there is no use in telling hundreds of empty flushes: a new epoch says it better.
STALL_TICKS = 100
HEALTH_EVERY_TICKS = 50
NCCL_WAIT_S = 0.04  # the NCCL thread looks 4 ms after each tick; more than half a tick would cost the next one

NO_PORTS = Gap(source="ports", what="port counters", reason="no RDMA device in sysfs")


class Ports(Protocol):
    """Port counters: read at each tick, handed over at each flush."""

    def sample(self, tick: int) -> None: ...  # noqa: D102
    def flush(self, last_tick: int) -> PortsFlush: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Rdma(Protocol):
    """Cumulative counters of every process that holds RDMA objects."""

    @property
    def lost(self) -> int: ...  # noqa: D102
    def sample(self) -> Sequence[HolderCounters]: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Nccl(Protocol):
    """NCCL calls up to a tick."""

    def take(self, last_tick: int, timeout_s: float) -> NcclTaken: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the agent reads. A source that is missing is None, and a gap says why."""

    open_ports: Callable[[], Ports] | None = None  # opened anew in each epoch
    rdma: Rdma | None = None
    rdma_tally: RdmaTally | None = None
    nccl: Nccl | None = None
    nccl_tally: NcclTally | None = None
    gaps: Sequence[Gap] = ()  # of ports and holders, on every nic-counters record
    nccl_gaps: Sequence[Gap] = ()  # on every nccl-throughput record
    missing: Sequence[str] = ()  # what is not there at all, in words for people: the agent is degraded
    probes_wanted: int = 0  # NCCL's come on top
    probes_attached: int = 0
    about: Callable[[Sequence[str]], About | None] = lambda _libraries: None


class Agent:
    """One node's sampling; `wake` does what is due at a moment, `run` waits between."""

    def __init__(
        self,
        sources: Sources,
        writer: RecordWriter,
        *,
        cluster: str,
        node: str,
        flush_ticks: int,
        publish_counts: Callable[[], PublishCounts],
        clocks: ReadClocks = read_clocks,
        new_epoch: Callable[[], str] = lambda: str(uuid.uuid4()),
        read_clock_error: Callable[[], ClockError | None] = clock_error,
    ) -> None:
        self._sources = sources
        self._writer = writer
        self._cluster = cluster
        self._node = node
        self._flush_ticks = flush_ticks
        self._publish_counts = publish_counts
        self._clocks = clocks
        self._new_epoch = new_epoch
        self._read_clock_error = read_clock_error
        self._log = structlog.get_logger("agent")
        self._ports: Ports | None = None
        self._about: About | None = None
        self._nccl_state = NcclTaken()
        self._gaps: list[Gap] = []
        self._source_errors: Counter[str] = Counter()
        self._error_gaps: dict[str, Gap] = {}
        self.late_ticks = self.flushes = self.epochs = 0
        self._health_tick = 0
        now = clocks()
        self._steps = StepWatch(now)
        self._begin(now)

    def run(self, stop: Event) -> None:
        """Sample until `stop` is set, then flush what there is."""
        while not stop.wait(self.seconds_until_due()):
            self.wake(self._clocks())
        self._flush(self._next_tick - 1)
        self._close_ports()

    def seconds_until_due(self) -> float:
        """How long to wait until the current tick has ended."""
        return max(0.0, (us_of_tick(self._next_tick + 1) - self._clocks().wall_us) / 1e6)

    def wake(self, now: Moment) -> None:
        """Sample every tick that has ended; a tick whose reading would come too late stays missing."""
        stepped_us = self._steps.stepped_us(now)
        behind_ticks = now.tick - self._next_tick
        if stepped_us or behind_ticks > STALL_TICKS:
            self._log.warning("new agent epoch", clock_step_us=stepped_us, ticks_behind=behind_ticks)
            self.late_ticks += max(behind_ticks, 0)
            self._flush(self._next_tick - 1)
            self._begin(now)
            return
        while self._next_tick < now.tick:
            tick = self._next_tick
            self._next_tick += 1
            if now.wall_us - us_of_tick(tick + 1) <= LATE_US:
                self._sample(tick)
            else:
                self.late_ticks += 1
            if self._next_tick - self._first_tick >= self._flush_ticks:
                self._flush(tick)
            if self._next_tick >= self._health_tick:
                self._health_tick = self._next_tick + HEALTH_EVERY_TICKS
                self._write_health(now)

    @property
    def values(self) -> dict[str, float | Mapping[str, float]]:
        """The agent's metrics."""
        rdma, nccl = self._sources.rdma, self._nccl_state
        tally = self._sources.nccl_tally
        return {
            "agent_flushes": self.flushes,
            "agent_late_ticks": self.late_ticks,
            "agent_epochs": self.epochs,
            "agent_late_rows": 0 if tally is None else tally.late_rows,
            "agent_lost_events": {"rdma": 0 if rdma is None else rdma.lost, "nccl": nccl.lost_events},
            "agent_source_errors": dict(self._source_errors),
            "agent_probes_wanted": self._sources.probes_wanted + nccl.probes_wanted,
            "agent_probes_attached": self._sources.probes_attached + nccl.probes_attached,
            "agent_gaps": Counter(gap.source for gap in self._gaps),
        }

    def _begin(self, now: Moment) -> None:
        self._close_ports()
        self.epochs += 1
        self._epoch = self._new_epoch()
        self._epoch_started = now
        self._seq = 0
        self._first_tick = self._next_tick = now.tick + 1  # the tick we are in has partly gone
        self._health_tick = self._next_tick + self._flush_ticks  # after the first flush, which learns of gaps
        self._about = None
        if self._sources.open_ports is not None:
            self._ports = self._sources.open_ports()
        self._log.info("agent epoch begins", epoch=self._epoch, first_tick=self._first_tick)

    def _close_ports(self) -> None:
        if self._ports is not None:
            self._ports.close()
            self._ports = None

    def _sample(self, tick: int) -> None:
        if self._ports is not None:
            ports = self._ports
            self._try("ports", lambda: ports.sample(tick))
        rdma, tally = self._sources.rdma, self._sources.rdma_tally
        if rdma is not None and tally is not None:
            self._try("rdma", lambda: tally.sample(tick, rdma.sample()))

    def _try(self, source: str, read: Callable[[], None]) -> None:
        try:
            read()
        except OSError as error:
            self._source_errors[source] += 1
            self._error_gaps[source] = Gap(source=source, what="a sample", reason=str(error))

    def _flush(self, last_tick: int) -> None:
        ticks = last_tick - self._first_tick + 1
        if ticks <= 0:
            return
        self._seq += 1
        nccl = self._take_nccl(last_tick)
        gaps = [*self._sources.gaps, *self._error_gaps.values()]
        self._error_gaps = {}
        ports = None if self._ports is None else self._ports.flush(last_tick)
        if ports is not None and not ports.ports:
            gaps.append(NO_PORTS)
        rdma, tally = self._sources.rdma, self._sources.rdma_tally
        flush = self._header(ticks, self._changed_about(nccl.libraries))
        nic = nic_counters(
            flush,
            ports=ports,
            holdings=() if tally is None else tally.flush(self._first_tick, ticks),
            bytes_rung=Rung.KERNEL_PROBES if tally is not None and tally.counts_bytes else Rung.PORT_TOTALS,
            lost_events=0 if rdma is None else rdma.lost,
            gaps=gaps,
        )
        calls = no_calls()
        if self._sources.nccl_tally is not None:
            calls = self._sources.nccl_tally.take(nccl.rows, nccl.events, first_tick=self._first_tick, ticks=ticks)
        throughput = nccl_throughput(
            flush, calls=calls, lost_events=nccl.lost_events, gaps=[*self._sources.nccl_gaps, *nccl.gaps]
        )
        self._writer.write(NIC_COUNTERS, self._node, nic)
        self._writer.write(NCCL_THROUGHPUT, self._node, throughput)
        self._gaps = bounded_gaps([*nic.gaps, *throughput.gaps])
        self._first_tick = last_tick + 1
        self.flushes += 1

    def _take_nccl(self, last_tick: int) -> NcclTaken:
        if self._sources.nccl is not None:
            self._nccl_state = self._sources.nccl.take(last_tick, NCCL_WAIT_S)
        return self._nccl_state

    def _changed_about(self, libraries: Sequence[str]) -> About | None:
        """What runs here, in an epoch's first record and whenever it changes."""
        found = self._sources.about(libraries)
        if found == self._about:
            return None
        self._about = found
        return found

    def _header(self, ticks: int, about: About | None) -> Flush:
        error = self._read_clock_error()
        since_start_us = us_of_tick(self._first_tick) - self._epoch_started.wall_us
        return Flush(
            cluster=self._cluster,
            node=self._node,
            agent_epoch=self._epoch,
            seq=self._seq,
            first_tick=self._first_tick,
            ticks=ticks,
            source=Source.KERNEL,
            clock=Clock(
                epoch_started_us=self._epoch_started.wall_us,
                monotonic_us=self._epoch_started.monotonic_us + since_start_us,
                offset_us=None if error is None else error.offset_us,
                max_error_us=None if error is None else error.max_error_us,
            ),
            about=about,
        )

    def _write_health(self, now: Moment) -> None:
        published = self._publish_counts()
        troubles = list(self._sources.missing)
        if published.away:
            troubles.append("broker away: keeping the newest records")
        values = self.values
        lost = values["agent_lost_events"]
        assert isinstance(lost, Mapping)  # noqa: S101
        health = PipelineHealth(
            cluster=self._cluster,
            component="agent",
            instance=self._node,
            epoch=self._epoch,
            us=now.wall_us,
            source=Source.KERNEL,
            status=HealthStatus.DEGRADED if troubles or any(lost.values()) else HealthStatus.OK,
            message="; ".join(troubles),
            probes_wanted=int(self._sources.probes_wanted + self._nccl_state.probes_wanted),
            probes_attached=int(self._sources.probes_attached + self._nccl_state.probes_attached),
            gaps=self._gaps,
            counts={
                "flushes": self.flushes,
                "late_ticks": self.late_ticks,
                "epochs": self.epochs,
                "lost_rdma": int(lost["rdma"]),
                "lost_nccl": int(lost["nccl"]),
                "source_errors": sum(self._source_errors.values()),
                "delivered": published.delivered,
                "dropped": published.dropped,
                "refused": published.refused,
                "unencodable": self._writer.unencodable,
            },
        )
        self._writer.write(PIPELINE_HEALTH, f"agent/{self._node}", health)
