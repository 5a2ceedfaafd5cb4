"""Offsets of struct members and values of enums, read from the BTF that a running kernel publishes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

# Layout: Documentation/bpf/btf.rst and include/uapi/linux/btf.h.
MAGIC = 0xEB9F
HEADER = struct.Struct("<HBBIIIII")  # magic, version, flags, hdr_len, type_off, type_len, str_off, str_len
TYPE = struct.Struct("<III")  # name_off, info, size or type
MEMBER = struct.Struct("<III")  # name_off, type, offset in bits
ENUMERATOR = struct.Struct("<Ii")  # name_off, value
INT, ARRAY, STRUCT, UNION, ENUM, FUNC_PROTO, VAR, DATASEC, DECL_TAG, ENUM64 = 1, 3, 4, 5, 6, 13, 14, 15, 17, 19
# Bytes behind the common part: a fixed number, and a number for each of `vlen` entries.
EXTRA = {INT: (4, 0), ARRAY: (12, 0), VAR: (4, 0), DECL_TAG: (4, 0)}
EXTRA |= {STRUCT: (0, 12), UNION: (0, 12), ENUM: (0, 8), FUNC_PROTO: (0, 8), DATASEC: (0, 12), ENUM64: (0, 12)}


class LayoutUnknown(Exception):  # noqa: N818
    """The kernel does not say where a member lies; the message is one line, fit for a gap."""


class Btf:
    """The types of the kernel, or of one module, whose strings then continue those of the kernel.

    Types are walked once, and only as far as the questions need: a kernel has 150,000 of them.
    """

    def __init__(self, blob: bytes, base: Btf | None = None) -> None:
        """Cut a BTF blob into its sections; raises LayoutUnknown when it is not one."""
        if len(blob) < HEADER.size:
            raise LayoutUnknown("BTF is cut short")
        magic, _, _, header_bytes, type_at, type_bytes, string_at, string_bytes = HEADER.unpack_from(blob)
        self._types = blob[header_bytes + type_at : header_bytes + type_at + type_bytes]
        self._strings = blob[header_bytes + string_at : header_bytes + string_at + string_bytes]
        if magic != MAGIC or len(self._types) != type_bytes or len(self._strings) != string_bytes:
            raise LayoutUnknown("BTF is damaged, or of another byte order")
        self._base = base
        self._seen: dict[tuple[int, bytes], bytes] = {}
        self._unseen = self._walk()

    def member_bytes(self, struct_name: str, member: str) -> int:
        """The offset of a member in bytes, in this module or, failing that, in the kernel it belongs to."""
        for name_at, _type, bits in MEMBER.iter_unpack(self._body(STRUCT, struct_name)):
            if self._text(name_at) == member.encode():
                return int(bits & 0xFFFFFF) // 8  # bitfields keep their size in the upper 8 bits
        if self._base is not None:
            return self._base.member_bytes(struct_name, member)
        raise LayoutUnknown(f"BTF knows no {struct_name}.{member}")

    def enum_value(self, enum_name: str, constant: str) -> int:
        """The value of a constant of a named enum."""
        for name_at, value in ENUMERATOR.iter_unpack(self._body(ENUM, enum_name)):
            if self._text(name_at) == constant.encode():
                return int(value)
        if self._base is not None:
            return self._base.enum_value(enum_name, constant)
        raise LayoutUnknown(f"BTF knows no {enum_name}.{constant}")

    def _body(self, kind: int, name: str) -> bytes:
        """The entries of the first type of this kind and name, empty when there is none."""
        wanted = (kind, name.encode())
        if wanted not in self._seen:
            for place, body in self._unseen:
                self._seen.setdefault(place, body)
                if place == wanted:
                    break
        return self._seen.get(wanted, b"")

    def _walk(self) -> Iterator[tuple[tuple[int, bytes], bytes]]:
        types, at = self._types, 0
        while at + TYPE.size <= len(types):
            name_at, info, _size = TYPE.unpack_from(types, at)
            kind, entries = info >> 24 & 0x1F, info & 0xFFFF
            fixed, each = EXTRA.get(kind, (0, 0))
            at += TYPE.size
            end = at + fixed + each * entries
            if kind in (STRUCT, ENUM):
                yield (kind, self._text(name_at)), types[at:end]
            at = end

    def _text(self, at: int) -> bytes:
        """The string at an offset: a module's offsets go on where the kernel's strings end."""
        if self._base is not None:
            if at < len(self._base._strings):
                return self._base._text(at)
            at -= len(self._base._strings)
        return self._strings[at : self._strings.find(b"\0", at)]


def read_btf(module: str, folder: Path = Path("/sys/kernel/btf")) -> Btf:
    """The BTF of a loaded module, or the kernel's own where the code is built in; raises LayoutUnknown."""
    try:
        kernel = Btf((folder / "vmlinux").read_bytes())
        own = folder / module
        return Btf(own.read_bytes(), base=kernel) if own.exists() else kernel
    except OSError as error:
        raise LayoutUnknown(f"no BTF: {error.strerror} ({error.filename})") from error
