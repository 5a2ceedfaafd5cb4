"""What the kernel knows of its clock's error, as a time service (chrony, ntpd, PTP) keeps it; read-only."""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass

_STA_UNSYNC = 0x0040  # include/uapi/linux/timex.h, an ABI
_STA_NANO = 0x2000


class _Timex(ctypes.Structure):
    """The head of struct timex; the rest is not read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_ubyte * 256),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockError:
    """The clock's offset from true time and the bound of its error, in microseconds."""

    offset_us: int
    max_error_us: int


def clock_error() -> ClockError | None:
    """None where no time service keeps the clock: then nobody knows."""
    answer = _Timex(modes=0)  # 0: change nothing
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(answer)) < 0:
        if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM):  # a sandbox that forbids the call
            return None
        raise OSError(ctypes.get_errno(), "adjtimex")
    return understood(status=int(answer.status), offset=int(answer.offset), max_error_us=int(answer.maxerror))


def understood(*, status: int, offset: int, max_error_us: int) -> ClockError | None:
    """In microseconds. The kernel tells what is still to be corrected, so the clock is off by minus that."""
    if status & _STA_UNSYNC:
        return None
    offset_us = offset // 1000 if status & _STA_NANO else offset
    return ClockError(offset_us=-offset_us, max_error_us=max_error_us)
