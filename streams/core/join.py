"""The first step: a node's counters, calls and pods, paired by sequence, told to each of its jobs."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

import msgspec

from streams.contract.header import WatcherClock
from streams.contract.inputs import Communicator, NcclThroughput, NicCounters, NodePods, Process
from streams.contract.series import PackedSeries
from streams.contract.slices import JobSlice, Progress
from streams.contract.ticks import TICKS_PER_SECOND
from streams.core.clocks import Clock
from streams.core.job_keys import job_key, process_id
from streams.core.layout import holder_id
from streams.core.pods import PodHistory, PodList
from streams.core.settings import JoinSettings
from streams.core.slicing import NodeLayout, compile_layout, silent_slices, slices, still_holds
from streams.core.views import View, last_tick

FORMAT = 1
PROCESSES_REMEMBERED = 4096  # Per node: keys of processes, the oldest forgotten first
NODE_FORGOTTEN_TICKS = 36_000  # An hour of silence
NEVER = 2**62
TOPICS = ("nic", "nccl", "pods")


class Silence(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A stretch of a node's timeline in which its counters said nothing."""

    first_tick: int
    through_tick: int


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the node's layout was compiled from, without the numbers."""

    nic: NicCounters
    nccl: NcclThroughput | None
    jobs: list[str]


class Node(msgspec.Struct, kw_only=True):
    """One node as `join` sees it."""

    nic: View[NicCounters] = msgspec.field(default_factory=View)
    nccl: View[NcclThroughput] = msgspec.field(default_factory=View)
    alive: bool = False
    closed_through: int = -1
    told_through: int = -1
    silences: list[Silence] = []
    pods: PodHistory = msgspec.field(default_factory=PodHistory)
    process_jobs: dict[str, str] = {}
    last_seen: dict[str, int] = {}  # Job -> the last tick at which it held or called anything here
    held_by: dict[str, str] = {}  # Holder id -> job, of processes that have called
    told: Told | None = None


class JoinState(msgspec.Struct, kw_only=True):
    """Everything that `join` remembers."""

    format: int = FORMAT
    clocks: dict[str, Clock] = msgspec.field(default_factory=lambda: {topic: Clock() for topic in TOPICS})
    nodes: dict[str, Node] = {}
    published: int = -1
    cluster: str = ""
    counts: dict[str, int] = {}


class Join:
    """One input partition. Its slices are a function of the three logs, however they interleave."""

    def __init__(self, settings: JoinSettings, partition: int) -> None:
        self._settings = settings
        self._partition = partition
        self._state = JoinState()
        self._layouts: dict[str, NodeLayout] = {}
        self._blocker = ""
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """What was dropped or forced: late, ahead, clock_ahead, retired_epoch, unpaired, forced, forgotten."""
        return dict(self._counts)

    @property
    def held(self) -> dict[str, int]:
        """Records that wait for the other topics, by topic: the caller may pause the partition that is ahead."""
        nodes = self._state.nodes.values()
        return {
            "nic-counters": sum(len(node.nic.waiting) for node in nodes),
            "nccl-throughput": sum(len(node.nccl.waiting) for node in nodes),
        }

    def apply(self, record: NicCounters | NcclThroughput | NodePods) -> list[JobSlice]:
        """Take the next record of any of the three topics; return what can be told because of it."""
        out: list[JobSlice] = []
        self._state.cluster = record.cluster
        if record.watcher_clock is not None:
            self._clock(record, record.watcher_clock)
            for name in list(self._state.nodes):
                self._close(name, self._state.nodes[name], out)
        elif isinstance(record, NodePods):
            self._heard("pods", record.as_of_tick)
            self._pods(record)
        else:
            node = self._node(record.node)
            self._heard(_topic(record), last_tick(record))
            if isinstance(record, NicCounters):
                self._admit_nic(node, record)
            else:
                silent = self._clock_of("nccl") - self._settings.node_silent_ticks
                node.nccl.admit(record, given_up_through=silent, counts=self._counts)
            self._close(record.node, node, out)
        self._progress(out)
        return out

    def snapshot(self) -> bytes:
        """The whole state; `restore` goes on from it as if nothing had happened."""
        self._state.counts = dict(self._counts)
        return msgspec.msgpack.encode(self._state)

    @classmethod
    def restore(cls, settings: JoinSettings, partition: int, snapshot: bytes) -> Join:
        """A `Join` in the state that `snapshot` returned."""
        join = cls(settings, partition)
        join._state = msgspec.msgpack.decode(snapshot, type=JoinState)
        join._counts = Counter(join._state.counts)
        for name, node in join._state.nodes.items():
            if (told := node.told) is not None:
                join._compile(name, node, told.nic, told.nccl, frozenset(told.jobs))
        return join

    def _node(self, name: str) -> Node:
        return self._state.nodes.setdefault(name, Node())

    def _clock_of(self, topic: str) -> int:
        return self._state.clocks[topic].tick

    def _heard(self, topic: str, tick: int) -> None:
        self._state.clocks[topic].hear(tick, ahead_ticks=self._settings.clock_ahead_ticks)

    def _clock(self, record: NicCounters | NcclThroughput | NodePods, told: WatcherClock) -> None:
        topic = _topic(record)
        if not self._state.clocks[topic].believe(told, ahead_ticks=self._settings.clock_ahead_ticks):
            self._counts["clock_ahead"] += 1
            return
        if topic != "nic":
            return
        clock = self._clock_of(topic)
        silent_through = clock - self._settings.node_silent_ticks
        for name, node in list(self._state.nodes.items()):
            if node.alive and node.nic.through < silent_through:
                node.alive = False
                node.silences.append(Silence(first_tick=node.nic.through + 1, through_tick=clock))
                node.nic.through = clock
            elif not node.alive and 0 <= node.nic.through < clock - NODE_FORGOTTEN_TICKS:
                self._forget(name, node)

    def _forget(self, name: str, node: Node) -> None:
        if not (node.nic.waiting or node.silences):
            self._state.nodes[name] = Node(pods=node.pods, nccl=node.nccl)
            self._layouts.pop(name, None)
            self._counts["forgotten"] += 1

    def _pods(self, record: NodePods) -> None:
        version = PodList(
            after_clock=self._clock_of("pods"),
            pods={pod.pod_uid: pod for pod in record.pods},
            facts=record.facts,
        )
        self._node(record.node).pods.add(version, held=self._settings.held_pod_lists)

    def _admit_nic(self, node: Node, record: NicCounters) -> None:
        """A node that is new, or back from silence, is judged from the watcher's clock on, not before."""
        clock = self._clock_of("nic")
        if clock >= 0 and record.first_tick > clock + self._settings.ahead_ticks:
            self._counts["ahead"] += 1
            return
        given_up = -1
        if not node.alive and record.agent_epoch not in node.nic.retired:
            node.alive = True
            given_up = clock
            if not node.nic.waiting and not node.silences:
                node.closed_through = max(node.nic.through, given_up, record.first_tick - 1)
        node.nic.admit(record, given_up_through=given_up, counts=self._counts)

    def _close(self, name: str, node: Node, out: list[JobSlice]) -> None:
        """Tell everything of this node that no further record can change."""
        while node.nic.waiting or node.silences:
            if node.silences and (
                not node.nic.waiting or node.silences[0].first_tick <= node.nic.waiting[0].first_tick
            ):
                silence = node.silences.pop(0)
                if (layout := self._layouts.get(name)) is not None:
                    out.extend(silent_slices(layout, first_tick=silence.first_tick, through_tick=silence.through_tick))
                node.closed_through = silence.through_tick
                continue
            record = node.nic.waiting[0]
            forced = len(node.nic.waiting) > self._settings.held_records
            if not (self._calls_known(node, record) and self._pods_known(name, node, record)):
                if not forced:
                    break
                self._counts["forced"] += 1
            self._tell(name, node, record, out)
        self._drop_unpaired(node)
        if not node.nic.waiting and not node.silences and node.alive:
            node.closed_through = max(node.closed_through, node.nic.through)

    def _calls_known(self, node: Node, record: NicCounters) -> bool:
        """True once the nccl log has told of the record's ticks, or has passed them in silence."""
        through = last_tick(record)
        if node.nccl.waiting and last_tick(node.nccl.waiting[-1]) >= record.first_tick:
            return True
        return self._clock_of("nccl") - self._settings.node_silent_ticks >= through

    def _pods_known(self, name: str, node: Node, record: NicCounters) -> bool:
        """True once the pods as of the record's last tick are final, and every new process's pod is found."""
        through = last_tick(record)
        clock = self._clock_of("pods")
        if clock < through:
            return False
        until = through + self._settings.job_wait_ticks
        calls = self._pair(node, record)
        layout = self._layouts.get(name)
        if clock >= until or calls is None or (layout is not None and layout.has_callers(calls)):
            return True  # The same callers as in the flush before: all have their jobs
        return all(
            not process.pod_uid
            or process_id(process) in node.process_jobs
            or node.pods.find(process.pod_uid, until_tick=until) is not None
            for process in (calls.processes[index] for index in _callers(calls))
        )

    def _pair(self, node: Node, record: NicCounters) -> NcclThroughput | None:
        for calls in node.nccl.waiting:
            if calls.first_tick >= record.first_tick:
                return calls if _same_flush(calls, record) else None
        return None

    def _tell(self, name: str, node: Node, record: NicCounters, out: list[JobSlice]) -> None:
        through = last_tick(record)
        calls = self._pair(node, record)
        node.nic.waiting.pop(0)
        node.told_through = through
        layout = self._layouts.get(name)
        callers_stay = layout is not None and layout.has_callers(calls)
        if calls is not None and not callers_stay:
            self._fix_jobs(node, calls, through)
        remembered = self._remembered(node, layout, through)
        if (
            layout is None
            or not callers_stay
            or not still_holds(layout, record, node.pods.at(through))
            or (remembered is not None and remembered != set(layout.jobs))
        ):
            layout = self._compile(name, node, record, calls, self._lately(node, through))
            node.told = Told(nic=_names(record), nccl=_names(calls), jobs=list(layout.jobs))
        for job in layout.seen:
            node.last_seen[job] = through
        out.extend(slices(layout, record, calls))
        node.closed_through = through
        if calls is not None:
            while node.nccl.waiting and node.nccl.waiting[0].first_tick < calls.first_tick:
                node.nccl.waiting.pop(0)
                self._counts["unpaired"] += 1
            node.nccl.waiting.pop(0)
        node.pods.forget_before(through)

    def _remembered(self, node: Node, layout: NodeLayout | None, through: int) -> frozenset[str] | None:
        """Jobs that were here lately; None where all of the layout's were here in the flush before."""
        return None if layout is not None and layout.all_seen else self._lately(node, through)

    def _lately(self, node: Node, through: int) -> frozenset[str]:
        oldest = through - self._settings.job_gone_ticks
        return frozenset(job for job, tick in node.last_seen.items() if tick >= oldest)

    def _drop_unpaired(self, node: Node) -> None:
        """Calls about ticks that the nic log has passed without a record."""
        passed = node.closed_through
        if not (node.alive or node.nic.waiting or node.silences):
            passed = max(passed, self._clock_of("nic") - self._settings.node_silent_ticks)
        while node.nccl.waiting and last_tick(node.nccl.waiting[0]) <= passed:
            node.nccl.waiting.pop(0)
            self._counts["unpaired"] += 1
        while len(node.nccl.waiting) > self._settings.held_records:
            node.nccl.waiting.pop(0)
            self._counts["unpaired"] += 1

    def _fix_jobs(self, node: Node, calls: NcclThroughput, through: int) -> None:
        """Give each process that calls for the first time its job, for good."""
        for process, members in _callers(calls).items():
            identity = process_id(calls.processes[process])
            if identity not in node.process_jobs:
                self._fix_job(node, identity, calls.processes[process], members, calls.node, through)
        for identity in list(node.process_jobs)[:-PROCESSES_REMEMBERED]:
            del node.process_jobs[identity]
        for named in list(node.held_by)[: -2 * PROCESSES_REMEMBERED]:
            del node.held_by[named]

    def _fix_job(
        self, node: Node, identity: str, process: Process, members: list[Communicator], name: str, through: int
    ) -> None:
        until = through + self._settings.job_wait_ticks
        pod = node.pods.find(process.pod_uid, until_tick=until) if process.pod_uid else None
        job = node.process_jobs[identity] = job_key(process, pod, members, node=name)
        named = holder_id(pod_uid=process.pod_uid, container_id=process.container_id, pid=process.pid)
        node.held_by[named] = node.held_by[f"pid:{process.pid}"] = job

    def _compile(
        self, name: str, node: Node, record: NicCounters, calls: NcclThroughput | None, remembered: frozenset[str]
    ) -> NodeLayout:
        layout = compile_layout(
            record,
            calls,
            node.pods.at(node.told_through),
            process_jobs=node.process_jobs,
            held_by=node.held_by,
            remembered=remembered,
        )
        self._layouts[name] = layout
        return layout

    def _progress(self, out: list[JobSlice]) -> None:
        """Say through which whole second every slice of this partition has been sent, when that has grown."""
        clock, wanted = self._clock_of("nic"), self._state.published + TICKS_PER_SECOND
        blocker = self._state.nodes.get(self._blocker)
        if clock < wanted or (blocker is not None and _told_through(blocker) < wanted):
            return  # Asked after every record: most are answered by the node that held us back last time
        through = clock
        for name, node in self._state.nodes.items():
            if (told := _told_through(node)) < through:
                through, self._blocker = told, name
        whole = (through + 1) // TICKS_PER_SECOND * TICKS_PER_SECOND - 1
        if whole > self._state.published:
            self._state.published = whole
            progress = Progress(input_partition=self._partition, through_tick=whole)
            out.append(JobSlice(cluster=self._state.cluster, job="", progress=progress))


def _told_through(node: Node) -> int:
    """The last tick up to which a node's slices have been sent; a node that is silent holds nobody back."""
    through = node.closed_through if node.alive else NEVER
    if node.nic.waiting:
        through = min(through, node.nic.waiting[0].first_tick - 1)
    if node.silences:
        through = min(through, node.silences[0].first_tick - 1)
    return through


def _topic(record: NicCounters | NcclThroughput | NodePods) -> str:
    if isinstance(record, NicCounters):
        return "nic"
    return "nccl" if isinstance(record, NcclThroughput) else "pods"


def _callers(calls: NcclThroughput) -> dict[int, list[Communicator]]:
    """Each process that has communicators, and those."""
    callers: dict[int, list[Communicator]] = {}
    for member in calls.communicators:
        callers.setdefault(member.process, []).append(member)
    return callers


def _same_flush(calls: NcclThroughput, record: NicCounters) -> bool:
    return (calls.agent_epoch, calls.seq, calls.first_tick, calls.ticks) == (
        record.agent_epoch,
        record.seq,
        record.first_tick,
        record.ticks,
    )


Rec = TypeVar("Rec", NicCounters, NcclThroughput | None)


def _names(record: Rec) -> Rec:
    """A record without its numbers: only what names things."""
    if isinstance(record, NicCounters):
        return msgspec.structs.replace(record, counters=PackedSeries(), features=PackedSeries(), resets=[], about=None)
    if isinstance(record, NcclThroughput):
        return msgspec.structs.replace(record, rows=b"", events=[])
    return record
