"""The driver's own statistics of a netdev, through the SIOCETHTOOL ioctl (what `ethtool -S` prints)."""

import ctypes
import fcntl
import socket
import struct
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

# linux/sockios.h and linux/ethtool.h
_SIOCETHTOOL = 0x8946
_GSTRINGS = 0x1B
_GSTATS = 0x1D
_GSSET_INFO = 0x37
_SET_STATS = 1
_NAME_BYTES = 32
# The kernel writes as many values as the driver has *then*: room for queues that appeared since we asked.
_SPARE_VALUES = 1024


class EthtoolSocket:
    """Asks the kernel; every method raises OSError (EOPNOTSUPP, EPERM, ENODEV …) where it will not answer."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def names(self, netdev: str) -> tuple[str, ...]:
        """The statistics' names in the driver's order; a repeated name gets "#2", "#3" …"""
        count = self._count(netdev)
        head = struct.Struct("=III")
        buffer = ctypes.create_string_buffer(head.size + _NAME_BYTES * (count + _SPARE_VALUES))
        head.pack_into(buffer, 0, _GSTRINGS, _SET_STATS, count)
        self._call(netdev, buffer)
        written = head.unpack_from(buffer)[2]
        raw = buffer.raw[head.size : head.size + _NAME_BYTES * written]
        return unique_names(
            raw[at : at + _NAME_BYTES].split(b"\0", 1)[0].decode(errors="replace").strip()
            for at in range(0, len(raw), _NAME_BYTES)
        )

    def values(self, netdev: str, count: int) -> NDArray[np.uint64]:
        """The values in the same order; another length than `count` says that the names have changed."""
        head = struct.Struct("=II")
        buffer = ctypes.create_string_buffer(head.size + 8 * (count + _SPARE_VALUES))
        head.pack_into(buffer, 0, _GSTATS, count)
        self._call(netdev, buffer)
        written: int = head.unpack_from(buffer)[1]
        return np.frombuffer(buffer.raw, dtype=np.uint64, count=written, offset=head.size)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _count(self, netdev: str) -> int:
        head = struct.Struct("=IIQI")
        buffer = ctypes.create_string_buffer(head.size)
        head.pack_into(buffer, 0, _GSSET_INFO, 0, 1 << _SET_STATS, 0)
        self._call(netdev, buffer)
        _, _, mask, count = head.unpack_from(buffer)
        return int(count) if mask else 0

    def _call(self, netdev: str, buffer: ctypes.Array[ctypes.c_char]) -> None:
        request = struct.pack("16sQ16x", netdev.encode()[:15], ctypes.addressof(buffer))
        fcntl.ioctl(self._socket.fileno(), _SIOCETHTOOL, request)


def unique_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each repetition marked by its number."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(result)
