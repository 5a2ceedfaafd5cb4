"""The symbol reader gives file offsets, accepts weak names, and refuses what is damaged."""

import struct
from collections.abc import Callable

import pytest

from producers.kernel.elf_symbols import NotALibraryError, parse_exports, read_exports
from tests.paths import repo_root

FUNC, OBJECT = 2, 1
LOCAL, GLOBAL, WEAK = 0, 1, 2
CODE_AT, CODE_ADDRESS = 0x1000, 0x401000


def library(symbols: list[tuple[str, int, int, int]], build_id: bytes = b"\xab\xcd\xef\x01") -> bytes:
    """A minimal 64-bit library: `symbols` are (name, address, type, binding); code is loaded away from its offset."""
    note = struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id
    names, table = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for name, address, kind, binding in symbols:
        table += struct.pack("<IBBHQQ", len(names), binding << 4 | kind, 0, 1, address, 16)
        names += name.encode() + b"\0"
    note_at = 64 + 2 * 56
    names_at = note_at + len(note)
    table_at = names_at + len(names)
    sections_at = table_at + len(table)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, sections_at, 0, 64, 56, 2, 64, 3, 2)
    segments = struct.pack("<IIQQQQQQ", 1, 5, CODE_AT, CODE_ADDRESS, CODE_ADDRESS, 0x800, 0x800, 0x1000)
    segments += struct.pack("<IIQQQQQQ", 4, 4, note_at, note_at, note_at, len(note), len(note), 4)
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, table_at, len(table), 2, 1, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
    return header + segments + note + names + table + sections


def reader(data: bytes) -> Callable[[int, int], bytes]:
    def read(offset: int, size: int) -> bytes:
        if offset + size > len(data):
            raise NotALibraryError("past the end")
        return data[offset : offset + size]

    return read


def test_addresses_become_file_offsets_and_weak_aliases_keep_both_names() -> None:
    data = library(
        [
            ("pncclSend", CODE_ADDRESS + 0x40, FUNC, GLOBAL),
            ("ncclSend", CODE_ADDRESS + 0x40, FUNC, WEAK),
            ("hidden", CODE_ADDRESS + 0x50, FUNC, LOCAL),
            ("a_table", CODE_ADDRESS + 0x60, OBJECT, GLOBAL),
            ("elsewhere", 0x10, FUNC, GLOBAL),
        ]
    )

    exports = parse_exports(reader(data))

    assert exports.offsets == {"pncclSend": CODE_AT + 0x40, "ncclSend": CODE_AT + 0x40}
    assert exports.build_id == "abcdef01"


def test_only_names_with_a_wanted_prefix_are_kept() -> None:
    data = library([("ncclSend", CODE_ADDRESS, FUNC, WEAK), ("other", CODE_ADDRESS, FUNC, GLOBAL)])

    assert parse_exports(reader(data), prefixes=(b"nccl", b"pnccl")).offsets == {"ncclSend": CODE_AT}


def test_a_forged_header_cannot_make_us_read_without_end() -> None:
    data = bytearray(library([("ncclSend", CODE_ADDRESS, FUNC, WEAK)]))
    data[56:58] = (0xFFFF).to_bytes(2, "little")

    with pytest.raises(NotALibraryError, match="65535 segments"):
        parse_exports(reader(bytes(data)))


@pytest.mark.parametrize("kept", [0, 3, 63, 100, 200, 300])
def test_a_file_that_is_cut_short_is_refused(kept: int) -> None:
    data = library([("ncclSend", CODE_ADDRESS, FUNC, WEAK)])[:kept]

    with pytest.raises(NotALibraryError):
        parse_exports(reader(data))


def test_a_text_file_is_refused() -> None:
    with pytest.raises(NotALibraryError, match="not a 64-bit little-endian ELF file"):
        read_exports(repo_root() / "pyproject.toml")
