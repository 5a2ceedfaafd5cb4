"""The path of each cgroup id, remembered for a while after the cgroup is gone."""

import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from producers.identity.cgroup_handle import CgroupHandles

MAX_REMEMBERED = 8_192  # about 1 MB; a full node has some hundred cgroups
KEEP_DEAD_S = 3_600.0  # as long as the pod list tells of ended pods
# A walk of a full node's tree costs some 10 ms: it runs on a miss, but not more often than this.
WALK_EVERY_S = 1.0


@dataclass(slots=True)
class _Entry:
    path: str
    alive_s: float


def find_cgroup2(cgroup_root: Path) -> Path | None:
    """Where the cgroup2 hierarchy is: the root itself, its `unified` folder on a hybrid host, or nowhere."""
    if (cgroup_root / "cgroup.controllers").exists():
        return cgroup_root
    unified = cgroup_root / "unified"
    return unified if (unified / "cgroup.procs").exists() else None


class CgroupPaths:
    """`path_of(id)` where id is the cgroup2 folder's inode, which is what eBPF reports; ids are never reused."""

    def __init__(
        self,
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        *,
        max_remembered: int = MAX_REMEMBERED,
        keep_dead_s: float = KEEP_DEAD_S,
    ) -> None:
        self._root = find_cgroup2(cgroup_root)
        self._max_remembered = max_remembered
        self._keep_dead_s = keep_dead_s
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._walked_s = float("-inf")
        self._handles = CgroupHandles(self._root) if self._root is not None else None

    def path_of(self, cgroup_id: int, now_s: float) -> str | None:
        """The cgroup's path below the cgroup2 root, also after it has gone; None if it was never seen."""
        if self._root is None:
            return None
        entry = self._entries.get(cgroup_id)
        if entry is None:
            self._learn(cgroup_id, now_s)
            entry = self._entries.get(cgroup_id)
        return None if entry is None else entry.path

    def sweep(self, now_s: float) -> None:
        """Forget cgroups that are gone for longer than `keep_dead_s`; call it every few seconds."""
        for cgroup_id, entry in list(self._entries.items()):
            if self._root is not None and _inode(f"{self._root}{entry.path}") == cgroup_id:
                entry.alive_s = now_s
            elif now_s - entry.alive_s > self._keep_dead_s:
                del self._entries[cgroup_id]

    def __len__(self) -> int:
        return len(self._entries)

    def _learn(self, cgroup_id: int, now_s: float) -> None:
        if self._handles is not None and self._handles.works:
            path = self._handles.path_of(cgroup_id)
            if path is not None:
                self._remember(cgroup_id, path, now_s)
        elif now_s - self._walked_s >= WALK_EVERY_S:
            self._walked_s = now_s
            self._walk(now_s)

    def _walk(self, now_s: float) -> None:
        root = str(self._root)
        waiting = [root]
        self._remember(_inode(root), "/", now_s)
        while waiting:
            folder = waiting.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                            self._remember(entry.inode(), entry.path.removeprefix(root), now_s)
            except OSError:
                continue  # removed while we looked

    def _remember(self, cgroup_id: int, path: str, now_s: float) -> None:
        """Keep the newest `max_remembered`; those seen alive longest ago go first."""
        self._entries[cgroup_id] = _Entry(path=path, alive_s=now_s)
        self._entries.move_to_end(cgroup_id)
        while len(self._entries) > self._max_remembered:
            self._entries.popitem(last=False)


def _inode(path: str) -> int:
    """The inode of a path, or 0, which no cgroup has."""
    try:
        return Path(path).stat().st_ino
    except OSError:
        return 0
