"""Finds the NCCL library in a process's /proc/PID/maps, whatever its path, container or fate."""

from __future__ import annotations

import re
from dataclasses import dataclass

# AMD's RCCL exports the same functions under the same names. A name that goes on with "-" is a plugin.
LIBRARY_NAME = re.compile(r"lib[nr]ccl\.so(\.\d+)*")
# Frameworks that may carry NCCL linked in, exported or hidden.
CARRIER_NAME = re.compile(r"(libtorch_cuda|xla_extension|libtensorflow_cc|libjax_common)[\w.-]*\.so(\.\d+)*")
ANY_NAME = re.compile(".*", re.DOTALL)
DELETED = " (deleted)"


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedFile:
    """One file with code in a process's address space; `path` is as that process's mount namespace sees it."""

    path: str
    device: str  # as maps prints it, "major:minor" in hex; on overlayfs and btrfs stat says something else
    inode: int
    start: int
    end: int
    deleted: bool  # the path may name another file by now: reach this one through map_files

    @property
    def map_file(self) -> str:
        """Its name in /proc/PID/map_files, which always leads to the very file that is mapped."""
        return f"{self.start:x}-{self.end:x}"

    @property
    def identity(self) -> tuple[str, int]:
        """What tells one file from another within one boot."""
        return self.device, self.inode


def library_path(line: str) -> str | None:
    """The path of NCCL in one line of maps, without the kernel's decorations; None where the line maps none."""
    mapped = _parse(line)
    return mapped.path if mapped and LIBRARY_NAME.fullmatch(_base(mapped.path)) else None


def nccl_files(maps: str) -> list[MappedFile]:
    """The NCCL libraries with code in this address space, each file once."""
    return code_files(maps, LIBRARY_NAME)


def carrier_files(maps: str) -> list[MappedFile]:
    """Files that may contain a statically linked NCCL, each once."""
    return code_files(maps, CARRIER_NAME)


def code_files(maps: str, name: re.Pattern[str] = ANY_NAME) -> list[MappedFile]:
    """The files of that name with code in this address space, each once, in the order of their addresses."""
    found: dict[tuple[str, int], MappedFile] = {}
    for line in maps.split("\n"):  # and at nothing else: the rest of a path is the tenant's choice
        mapped = _parse(line)
        if mapped and name.fullmatch(_base(mapped.path)):
            found.setdefault(mapped.identity, mapped)
    return list(found.values())


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _parse(line: str) -> MappedFile | None:
    fields = line.split(None, 5)
    if len(fields) < 6 or not fields[5].startswith("/") or "x" not in fields[1]:
        return None
    start, _, end = fields[0].partition("-")
    try:
        first, last, inode = int(start, 16), int(end, 16), int(fields[4])
    except ValueError:
        return None
    path = fields[5].rstrip("\n")
    deleted = path.endswith(DELETED)
    return MappedFile(
        # The kernel escapes a newline in a path, and nothing else.
        path=path.removesuffix(DELETED).replace("\\012", "\n"),
        device=fields[3],
        inode=inode,
        start=first,
        end=last,
        deleted=deleted,
    )
