"""Reads from a shared library what a uprobe needs: exported functions as file offsets, and the build id."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ELF_MAGIC = b"\x7fELF"
LITTLE_ENDIAN_64 = b"\x02\x01"
SHT_DYNSYM = 11
PT_LOAD, PT_NOTE = 1, 4
NT_GNU_BUILD_ID = 3
STT_FUNC, STT_GNU_IFUNC = 2, 10
STB_GLOBAL, STB_WEAK = 1, 2
SECTION = struct.Struct("<IIQQQQIIQQ")
SEGMENT = struct.Struct("<IIQQQQQQ")
SYMBOL = struct.Struct("<IBBHQQ")
TABLE_BYTES_AT_MOST = 1 << 26  # the largest frameworks stay below; a forged header must not keep us busy

SEGMENTS_AT_MOST = 256
NOTE_BYTES_AT_MOST = 1 << 16
NAME_BYTES_AT_MOST = 256  # longer names are C++ templates, nothing that we probe

Read = Callable[[int, int], bytes]


class NotALibraryError(Exception):
    """The file is not a 64-bit little-endian ELF file with the tables that it promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exports:
    """The functions that a library exports: offset in the file by name, weak aliases included."""

    build_id: str | None
    offsets: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    kind: int
    offset: int
    address: int
    file_bytes: int


def read_exports(path: Path, *, prefixes: tuple[bytes, ...] = (b"",)) -> Exports:
    """Exports, with names that begin so, of a library on disk; raises OSError or NotALibraryError.

    The file may be a tenant's: only its tables are read, and what they may cost is bounded.
    """
    with path.open("rb") as file:

        def read(offset: int, size: int) -> bytes:
            if size > TABLE_BYTES_AT_MOST:
                raise NotALibraryError(f"a table of {size} bytes")
            file.seek(offset)
            data = file.read(size)
            if len(data) != size:
                raise NotALibraryError("a table reaches past the end of the file")
            return data

        return parse_exports(read, prefixes=prefixes)


def parse_exports(read: Read, *, prefixes: tuple[bytes, ...] = (b"",)) -> Exports:
    """Exports from any source of bytes: `read(offset, size)` returns exactly `size` bytes or raises."""
    header = read(0, 64)
    if header[:4] != ELF_MAGIC or header[4:6] != LITTLE_ENDIAN_64:
        raise NotALibraryError("not a 64-bit little-endian ELF file")
    segment_table, section_table = struct.unpack_from("<QQ", header, 32)
    _, segments, _, sections = struct.unpack_from("<HHHH", header, 54)
    if segments > SEGMENTS_AT_MOST:
        raise NotALibraryError(f"{segments} segments")
    parts = _segments(read, segment_table, segments)
    loads = [part for part in parts if part.kind == PT_LOAD]
    notes = [part for part in parts if part.kind == PT_NOTE and part.file_bytes <= NOTE_BYTES_AT_MOST]
    names, symbols = _dynamic_symbols(read, section_table, sections)
    return Exports(build_id=_build_id(read, notes), offsets=_offsets(names, symbols, loads, prefixes))


def _segments(read: Read, table: int, count: int) -> list[_Segment]:
    raw = read(table, count * SEGMENT.size)
    return [
        _Segment(kind=kind, offset=offset, address=address, file_bytes=file_bytes)
        for kind, _, offset, address, _, file_bytes, _, _ in SEGMENT.iter_unpack(raw)
    ]


def _dynamic_symbols(read: Read, table: int, count: int) -> tuple[bytes, bytes]:
    """The string table and the symbol table of the first dynamic symbol section; empty where there is none."""
    sections = list(SECTION.iter_unpack(read(table, count * SECTION.size))) if table else []
    for _, kind, _, _, offset, size, link, _, _, _ in sections:
        if kind == SHT_DYNSYM and link < len(sections):
            return read(sections[link][4], sections[link][5]), read(offset, size - size % SYMBOL.size)
    return b"", b""


def _offsets(names: bytes, symbols: bytes, loads: list[_Segment], prefixes: tuple[bytes, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name_at, info, _, section, address, _ in SYMBOL.iter_unpack(symbols):
        if section == 0 or info & 15 not in (STT_FUNC, STT_GNU_IFUNC) or info >> 4 not in (STB_GLOBAL, STB_WEAK):
            continue
        if not names.startswith(prefixes, name_at):
            continue
        file_offset = _file_offset(address, loads)
        end = names.find(b"\0", name_at, name_at + NAME_BYTES_AT_MOST)
        if file_offset is not None and end >= 0:
            found[names[name_at:end].decode("utf-8", "replace")] = file_offset
    return found


def _file_offset(address: int, loads: list[_Segment]) -> int | None:
    for part in loads:
        if part.address <= address < part.address + part.file_bytes:
            return address - part.address + part.offset
    return None


def _build_id(read: Read, notes: list[_Segment]) -> str | None:
    for part in notes:
        raw, at = read(part.offset, part.file_bytes), 0
        while at + 12 <= len(raw):
            name_bytes, value_bytes, kind = struct.unpack_from("<III", raw, at)
            value_at = at + 12 + (name_bytes + 3) // 4 * 4
            if kind == NT_GNU_BUILD_ID and raw[at + 12 : at + 15] == b"GNU":
                return raw[value_at : value_at + value_bytes].hex()
            at = value_at + (value_bytes + 3) // 4 * 4
    return None
