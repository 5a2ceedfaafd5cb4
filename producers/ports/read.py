"""Reads many small counter files over and over through descriptors that stay open."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from producers.ports.delta import ABSENT

READ_BYTES = 64  # a u64 has 20 digits
PARK_AFTER_FAILURES = 3  # in a row; then the file rests until `revive`, so that a dead one costs nothing


def leading_code(data: bytes) -> int:
    """The number before the colon of "4: ACTIVE"."""
    return int(data.partition(b":")[0])


class FileReader:
    """Reads n files into n slots; a file that fails leaves ABSENT in its slot and never stops the others.

    `reasons` says why a slot is ABSENT now, `failures` counts failed reads by reason since the start.
    """

    def __init__(self, paths: Sequence[Path], parse: Callable[[bytes], int] = int) -> None:
        self._paths = tuple(paths)
        self._parse = parse
        self._active: list[tuple[int, int]] = []
        self._in_a_row: Counter[int] = Counter()
        self.reasons: dict[int, str] = {}
        self.failures: Counter[str] = Counter()
        for slot in range(len(self._paths)):
            self._open(slot)

    def read(self, into: list[int], offset: int = 0) -> None:
        """Put one reading of slot i into `into[offset + i]`, for every slot."""
        pread, parse, reasons = os.pread, self._parse, self.reasons
        for slot in reasons:
            into[offset + slot] = ABSENT
        for slot, descriptor in self._active:
            try:
                data = pread(descriptor, READ_BYTES, 0)
                value = parse(data)
            except OSError as error:
                self._fail(slot, errno.errorcode.get(error.errno or 0, "EIO"))
            except ValueError:
                self._fail(slot, _why_no_number(data))
            else:
                if 0 <= value < ABSENT:
                    into[offset + slot] = value
                    if reasons and slot in reasons:
                        del reasons[slot], self._in_a_row[slot]
                    continue
                self._fail(slot, "negative" if value < 0 else "all ones: not supported")
            into[offset + slot] = ABSENT
        if self._in_a_row:
            self._park()

    def revive(self) -> None:
        """Open again what was parked or could not be opened."""
        open_slots = {slot for slot, _ in self._active}
        for slot in [slot for slot in self.reasons if slot not in open_slots]:
            self._open(slot)

    def close(self) -> None:
        """Close every file."""
        for _, descriptor in self._active:
            os.close(descriptor)
        self._active.clear()

    def _open(self, slot: int) -> None:
        try:
            descriptor = os.open(self._paths[slot], os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._fail(slot, errno.errorcode.get(error.errno or 0, "EIO"))
            return
        self._active.append((slot, descriptor))

    def _fail(self, slot: int, reason: str) -> None:
        self.reasons[slot] = reason
        self.failures[reason] += 1
        self._in_a_row[slot] += 1

    def _park(self) -> None:
        parked = {slot for slot, count in self._in_a_row.items() if count >= PARK_AFTER_FAILURES}
        for slot, descriptor in self._active:
            if slot in parked:
                os.close(descriptor)
        self._active = [(slot, descriptor) for slot, descriptor in self._active if slot not in parked]
        for slot in parked:
            del self._in_a_row[slot]


def _why_no_number(data: bytes) -> str:
    text = data.decode(errors="replace").strip()
    if not text:
        return "empty"
    return text[:32] if text.startswith("N/A") else "not a number"
