"""Names the holder of a resource: a pod, else a container, else a process, also after it has gone."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from producers.identity.cgroup_paths import CgroupPaths
from producers.identity.cgroup_text import CgroupReading, read_cgroup, unified_path
from producers.identity.process import Process, read_process, read_start

HolderKind = Literal["pod", "container", "process"]

MAX_KNOWN = 16_384  # about 8 MB of (process, cgroup) pairs
KEEP_UNUSED_S = 3_600.0
RECHECK_S = 5.0  # how long a pid is trusted to be the same process
RETRY_S = 1.0  # how soon an unresolved one is looked for again
SWEEP_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds: `pod_uid` only for pods, `container_id` where known; `start_ticks` tells a pid's lives apart."""

    kind: HolderKind
    pod_uid: str | None
    container_id: str | None
    runtime: str | None
    qos: str | None
    pid: int
    comm: str
    start_ticks: int | None


@dataclass(slots=True)
class _Known:
    holder: Holder
    process: Process | None
    checked_s: float
    used_s: float
    resolved: bool


class Holders:
    """`resolve(pid, cgroup_id)` at event time; call it from one thread.

    The cgroup id decides: it is the event's own, and outlives the process. /proc/PID/cgroup is asked where
    the cgroup2 hierarchy does not know pods (v1 and hybrid hosts), and only believed if its cgroup2 line
    agrees with the id, so that a reused pid never lends its pod to somebody else's events.
    """

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        clock_s: Callable[[], float] = time.monotonic,
        max_known: int = MAX_KNOWN,
        keep_unused_s: float = KEEP_UNUSED_S,
    ) -> None:
        self._proc = proc
        self._paths = CgroupPaths(cgroup_root, keep_dead_s=keep_unused_s)
        self._clock_s = clock_s
        self._max_known = max_known
        self._keep_unused_s = keep_unused_s
        self._known: OrderedDict[tuple[int, int], _Known] = OrderedDict()
        self._swept_s = clock_s()
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """First resolutions by outcome: pod, container, process, ambiguous, gone."""
        return self._counts

    def resolve(self, pid: int, cgroup_id: int, comm: str = "") -> Holder:
        """The holder behind an event of `pid` in cgroup `cgroup_id` (0 = not known); `comm` is the event's."""
        now_s = self._clock_s()
        known = self._known.get((pid, cgroup_id))
        if known is None or self._is_stale(known, now_s):
            known = self._look(pid, cgroup_id, comm, now_s, known)
        known.used_s = now_s
        if now_s - self._swept_s >= SWEEP_EVERY_S:
            self._sweep(now_s)
        return known.holder

    def process(self, pid: int, cgroup_id: int) -> Process | None:
        """What was learnt of the process when it was resolved; None if it was gone by then."""
        known = self._known.get((pid, cgroup_id))
        return None if known is None else known.process

    def __len__(self) -> int:
        return len(self._known)

    def _is_stale(self, known: _Known, now_s: float) -> bool:
        if not known.resolved:
            return now_s - known.checked_s >= RETRY_S
        if known.process is None or now_s - known.checked_s < RECHECK_S:
            return False
        start = read_start(known.process.pid, self._proc)
        if start is None or start[0] == known.process.start_ticks:
            known.checked_s = now_s  # the same one, or gone: what we remember stands
            return False
        return True

    def _look(self, pid: int, cgroup_id: int, comm: str, now_s: float, before: _Known | None) -> _Known:
        process = read_process(pid, self._proc)
        path = self._paths.path_of(cgroup_id, now_s) if cgroup_id else None
        if process is not None and not _same_cgroup(path, process.cgroup):
            process = None  # another process took the pid, or it moved: the event's cgroup stands
        reading = self._reading(path, process)
        holder = _holder(reading, pid, comm, process)
        known = _Known(
            holder=holder,
            process=process,
            checked_s=now_s,
            used_s=now_s,
            resolved=holder.kind != "process" or process is not None,
        )
        if before is None:
            self._count(reading, known)
        self._known[pid, cgroup_id] = known
        self._known.move_to_end((pid, cgroup_id))
        while len(self._known) > self._max_known:
            self._known.popitem(last=False)
        return known

    def _reading(self, path: str | None, process: Process | None) -> CgroupReading:
        by_id = read_cgroup(path or "")
        if by_id.identity is not None or process is None:
            return by_id
        by_process = read_cgroup(process.cgroup)
        return by_process if by_process.identity is not None or by_id.container_id is None else by_id

    def _count(self, reading: CgroupReading, known: _Known) -> None:
        if reading.ambiguous:
            self._counts["ambiguous"] += 1
        self._counts[known.holder.kind if known.resolved else "gone"] += 1

    def _sweep(self, now_s: float) -> None:
        self._swept_s = now_s
        self._paths.sweep(now_s)
        unused = [key for key, known in self._known.items() if now_s - known.used_s > self._keep_unused_s]
        for key in unused:
            del self._known[key]


def _same_cgroup(path: str | None, cgroup_text: str) -> bool:
    """Whether a process's text may speak for an event of cgroup2 path `path`; unknown does not contradict.

    An agent in a cgroup namespace of its own sees other processes as "/../../<the end of their path>".
    """
    unified = unified_path(cgroup_text)
    if path is None or unified is None:
        return True
    end = unified
    while end.startswith("/.."):
        end = end.removeprefix("/..")
    return unified == path or (end != unified and path.endswith(end))


def _holder(reading: CgroupReading, pid: int, comm: str, process: Process | None) -> Holder:
    identity = reading.identity
    kind: HolderKind = "process"
    if identity is not None:
        kind = "pod" if identity.pod_uid is not None else "container"
    elif reading.container_id is not None and not reading.ambiguous:
        kind = "container"
    outside = kind == "container" and identity is None
    return Holder(
        kind=kind,
        pod_uid=identity.pod_uid if identity is not None else None,
        container_id=reading.container_id if outside else identity.container_id if identity else None,
        runtime=reading.container_runtime if outside else identity.runtime if identity else None,
        qos=identity.qos if identity is not None else None,
        pid=pid,
        comm=comm or (process.comm if process is not None else ""),
        start_ticks=None if process is None else process.start_ticks,
    )
