"""Probes every NCCL library that a process on this node maps, each file once, and says what it cannot probe."""

from __future__ import annotations

import mmap
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from producers.kernel.elf_symbols import Exports, NotALibraryError, read_exports
from producers.kernel.loader import ProbeUnavailable, Program
from producers.kernel.nccl_maps import MappedFile, carrier_files, code_files, nccl_files
from producers.kernel.nccl_probes import is_nccl, probe_points
from streams.contract.header import Gap

LIBRARIES_AT_MOST = 64  # two probes for each of some 30 functions: bounded work at attach and detach
UNMAPPED_RESCANS = 30  # a library that nobody maps for so many rescans is let go: a probe keeps its file's blocks
PROCESSES_NAMED = 8
NOTHING_EXPORTED = "NCCL, if any, is linked in and exports nothing"
CANNOT_OPEN = "the mapped file cannot be opened: the agent needs SYS_ADMIN and the host's /proc"

PREFIXES = (b"nccl", b"pnccl")

Identity = tuple[str, int]


@dataclass(slots=True, kw_only=True)
class Library:
    """A file with NCCL inside that is probed in every process that maps it."""

    path: str
    build_id: str | None
    handles: list[int] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    pinned: bool = False  # asked for by the caller, kept though nobody maps it
    unmapped_rescans: int = 0


class LibraryProbes:
    """The probes of one program on all NCCL libraries of a node."""

    def __init__(self, program: Program, proc: Path) -> None:
        self._program = program
        self._proc = proc
        self._libraries: dict[Identity, Library] = {}
        self._not_nccl: dict[Identity, Gap] = {}
        self._scan_gaps: list[Gap] = []
        self.added = 0  # libraries found by rescans so far

    @property
    def gaps(self) -> list[Gap]:
        """What is not probed and why, as of the last rescan."""
        return [*(gap for library in self._libraries.values() for gap in library.gaps), *self._scan_gaps]

    @property
    def libraries(self) -> list[Library]:
        """What is probed now."""
        return list(self._libraries.values())

    def rescan(self) -> set[int]:
        """Probe what is newly mapped, let go what nobody maps any more; returns the processes that map NCCL."""
        mapped: set[Identity] = set()
        users: set[int] = set()
        unseen: dict[Gap, list[int]] = {}
        for pid, maps in self._processes():
            # A framework's own file matters only where it may bring NCCL along.
            for file in nccl_files(maps) or carrier_files(maps):
                users.add(pid)
                mapped.add(file.identity)
                gap = self._probe_mapped(pid, file)
                if gap is not None:
                    unseen.setdefault(gap, []).append(pid)
        self._scan_gaps = [_in_processes(gap, pids) for gap, pids in unseen.items()]
        self._let_go_unmapped(mapped)
        return users

    def pin(self, path: Path) -> None:
        """Probe a library before anybody maps it, and keep it."""
        try:
            exports = read_exports(path, prefixes=PREFIXES)
            identity = _identity(path)
        except (OSError, NotALibraryError) as error:
            gap = _gap(str(path), str(error))
            self._libraries[str(path), 0] = Library(path=str(path), build_id=None, pinned=True, gaps=[gap])
            return
        library = self._attach(path, str(path), exports)
        library.pinned = True
        self._libraries[identity] = library

    def _processes(self) -> Iterator[tuple[int, str]]:
        for entry in self._proc.iterdir():
            if not entry.name.isdigit():
                continue
            try:
                raw = (entry / "maps").read_bytes()
            except OSError:  # gone meanwhile, or not ours to look at: nothing to probe either way
                continue
            if b"ccl.so" in raw or b"libtorch_cuda" in raw or b"xla_extension" in raw:
                yield int(entry.name), raw.decode("utf-8", "surrogateescape")

    def _probe_mapped(self, pid: int, file: MappedFile) -> Gap | None:
        """Probe this file unless it is; the answer is a gap where this file's NCCL cannot be seen."""
        if file.identity in self._libraries or file.identity in self._not_nccl:
            return self._not_nccl.get(file.identity)
        if len(self._libraries) >= LIBRARIES_AT_MOST:
            return _gap(file.path, f"more than {LIBRARIES_AT_MOST} NCCL libraries are in use on this node")
        try:
            found = self._open(pid, file)
        except NotALibraryError as error:
            return self._not_nccl.setdefault(file.identity, _gap(file.path, str(error)))
        if found is None:
            return _gap(file.path, CANNOT_OPEN) if (self._proc / str(pid)).exists() else None
        path, exports = found
        if not is_nccl(exports.offsets):
            return self._not_nccl.setdefault(file.identity, _gap(file.path, NOTHING_EXPORTED))
        self._libraries[file.identity] = self._attach(path, file.path, exports)
        self.added += 1
        return None

    def _open(self, pid: int, file: MappedFile) -> tuple[Path, Exports] | None:
        """A path that leads to the very file that is mapped, deleted, replaced or in a container though it be."""
        process = self._proc / str(pid)
        for path in (process / "map_files" / file.map_file, process / "root" / file.path.lstrip("/")):
            try:
                # The path is the tenant's to change: never open a pipe, never probe another file.
                status = path.stat()
                if stat.S_ISREG(status.st_mode) and status.st_ino == file.inode:
                    return path, read_exports(path, prefixes=PREFIXES)
            except OSError:
                continue
        return None

    def _attach(self, path: Path, shown_path: str, exports: Exports) -> Library:
        library = Library(path=shown_path, build_id=exports.build_id)
        for point in probe_points(exports.offsets):
            # The return first: a call that is seen entering is then also seen leaving.
            handles: list[int] = []
            try:
                handles.append(self._program.attach_uretprobe(path, point.offset, f"leave_{point.program}"))
                handles.append(self._program.attach_uprobe(path, point.offset, f"enter_{point.program}"))
            except ProbeUnavailable as error:
                self._program.detach(*handles)
                library.gaps.append(_gap(f"{point.symbol} in {shown_path}", error.reason))
                continue
            library.handles += handles
        return library

    def _let_go_unmapped(self, mapped: set[Identity]) -> None:
        for identity, library in list(self._libraries.items()):
            library.unmapped_rescans = 0 if identity in mapped or library.pinned else library.unmapped_rescans + 1
            if library.unmapped_rescans >= UNMAPPED_RESCANS:
                self._program.detach_later(*library.handles)
                del self._libraries[identity]
        self._not_nccl = {identity: gap for identity, gap in self._not_nccl.items() if identity in mapped}


def _identity(path: Path) -> Identity:
    """What maps will say of this file: on overlayfs that is not what stat says, so map it and look."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC),
    ):
        maps = Path("/proc/self/maps").read_text()
    mine = (mapped.identity for mapped in code_files(maps) if mapped.path == str(path.resolve()))
    return next(mine, (str(path), 0))


def _gap(what: str, reason: str) -> Gap:
    return Gap(source="nccl", what=what, reason=reason)


def _in_processes(gap: Gap, pids: list[int]) -> Gap:
    named = ", ".join(str(pid) for pid in pids[:PROCESSES_NAMED])
    more = f" and {len(pids) - PROCESSES_NAMED} more" if len(pids) > PROCESSES_NAMED else ""
    return _gap(gap.what, f"{gap.reason} (process {named}{more})")
