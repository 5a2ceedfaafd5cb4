"""The one place where BPF programs are compiled, loaded and attached: the only file that imports bcc.

bcc comes from Debian's python3-bpfcc, outside any virtual environment (PyPI's `bcc` is an unrelated package),
so it is imported lazily from there, and nothing else is. Programs include only <uapi/linux/ptrace.h>: a compile
then takes 0.3-0.6 s; with kernel headers it is 10 to 30 times that. The first one brings the process to a peak of
137 MB RSS; 108 MB stay, of which 84 are clean pages of LLVM that the kernel can drop.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.machinery
import importlib.util
import itertools
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

DEBIAN_PACKAGES = Path("/usr/lib/python3/dist-packages")
PYTHON_BPFCC_MISSING = "no BPF loader: install python3-bpfcc (Debian, Ubuntu) or python3-bcc (Fedora)"
PERF_DEVICES = Path("/sys/bus/event_source/devices")
ENTRY, RETURN = 0, 1
SPARE_ENTRIES = 64  # room for entries that appear between two steps of one batched read

_serial = itertools.count()


class LoaderUnavailable(Exception):  # noqa: N818  named for what it says
    """Programs cannot be loaded on this machine; the message is one line and says what to do."""


class ProbeUnavailable(Exception):  # noqa: N818
    """One probe could not be attached; `reason` is one line, fit for a gap."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def load(source: str, *, cflags: Sequence[str] = ()) -> Program:
    """Compile and load a program; raises LoaderUnavailable with one line when this machine cannot."""
    return Program(_bpf_module(), source, cflags)


class Program:
    """A loaded program with its probes and tables; closing it detaches everything."""

    def __init__(self, bcc: ModuleType, source: str, cflags: Sequence[str]) -> None:
        self._bcc: Any = bcc
        try:
            self._bpf: Any = bcc.BPF(text=source.encode(), cflags=["-Wno-macro-redefined", *cflags])
        except Exception as error:
            raise LoaderUnavailable(_why_not_compiled(error)) from error
        ctypes.CDLL(None).malloc_trim(0)  # gives back the 38 MB that the compiler has just freed
        self._probes: dict[int, tuple[int, bytes, bool]] = {}
        self._tables: dict[str, Table] = {}
        self._closed = False

    def attach_kprobe(self, symbol: str, function: str) -> int:
        """Run `function` at the entry of a kernel function; returns a handle for `detach`."""
        return self._attach_kernel(ENTRY, symbol, function)

    def attach_kretprobe(self, symbol: str, function: str) -> int:
        """Run `function` at the return of a kernel function; raises ProbeUnavailable like the other three."""
        return self._attach_kernel(RETURN, symbol, function)

    def attach_uprobe(self, path: str | Path, offset: int, function: str, pid: int = -1) -> int:
        """Run `function` at a file offset (not a virtual address) of `path`, in one process or in all."""
        return self._attach_user(ENTRY, path, offset, function, pid)

    def attach_uretprobe(self, path: str | Path, offset: int, function: str, pid: int = -1) -> int:
        """Run `function` when the function that starts at this file offset returns."""
        return self._attach_user(RETURN, path, offset, function, pid)

    def detach(self, *handles: int) -> None:
        """Detach probes; a handle that is gone already is ignored.

        The kernel waits until nobody can be inside a probe: some 100 ms each (6.18), one after the other.
        """
        for handle in handles:
            if handle in self._probes:
                self._close_probe(self._probes.pop(handle))

    def detach_later(self, *handles: int) -> None:
        """Detach probes on a thread of their own, for callers that must not wait."""
        probes = [self._probes.pop(handle) for handle in handles if handle in self._probes]
        threading.Thread(target=self._close_probes, args=(probes,), daemon=True).start()

    def _close_probes(self, probes: list[tuple[int, bytes, bool]]) -> None:
        for probe in probes:
            self._close_probe(probe)

    def _close_probe(self, probe: tuple[int, bytes, bool]) -> None:
        fd, event, is_user = probe
        self._bcc.lib.bpf_close_perf_event_fd(fd)
        kind = "uprobe" if is_user else "kprobe"
        # Before 4.17 there is no such device: bcc then makes a named event in tracefs, to be removed.
        if not (PERF_DEVICES / kind / "type").exists():
            getattr(self._bcc.lib, f"bpf_detach_{kind}")(event)

    def table(self, name: str) -> Table:
        """The map declared under this name in the program's source; KeyError when there is none."""
        if name not in self._tables:
            self._tables[name] = Table(self._bcc.lib, self._bpf.get_table(name.encode()))
        return self._tables[name]

    def close(self) -> None:
        """Detach every probe and free the maps, as slowly as `detach`; calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self.detach(*self._probes)
        self._tables.clear()
        self._bpf.cleanup()
        self._bcc.atexit.unregister(self._bpf.cleanup)

    # bcc's own attach methods key a probe by its path or symbol, so that a replaced file would push out the
    # one still in use, and they take addresses where we know offsets: these call what lies under them.
    def _attach_kernel(self, end: int, symbol: str, function: str) -> int:
        handle, event, program_fd = self._new_probe(function)
        fd = self._bcc.lib.bpf_attach_kprobe(program_fd, end, event, symbol.encode(), 0, 0)
        return self._keep(handle, fd, event, is_user=False, where=symbol)

    def _attach_user(self, end: int, path: str | Path, offset: int, function: str, pid: int) -> int:
        handle, event, program_fd = self._new_probe(function)
        fd = self._bcc.lib.bpf_attach_uprobe(program_fd, end, event, os.fsencode(path), offset, pid)
        return self._keep(handle, fd, event, is_user=True, where=f"{path} at offset {offset:#x}")

    def _new_probe(self, function: str) -> tuple[int, bytes, int]:
        try:
            program = self._bpf.load_func(function.encode(), self._bcc.BPF.KPROBE)
        except Exception as error:
            raise ProbeUnavailable(f"{function}: {_one_line(error)}") from error
        handle = next(_serial)
        return handle, b"fabric_%d_%d" % (os.getpid(), handle), program.fd

    def _keep(self, handle: int, fd: int, event: bytes, *, is_user: bool, where: str) -> int:
        if fd < 0:
            code = ctypes.get_errno()
            raise ProbeUnavailable(f"{where}: {os.strerror(code) if code else 'refused by the kernel'}")
        self._probes[handle] = (fd, event, is_user)
        return handle


class Table:
    """One BPF map; keys and values are ctypes structures with the field names of the C source.

    Plain integers come as ctypes integers, read with `.value`.
    """

    def __init__(self, lib: Any, bcc_table: Any) -> None:
        self._lib = lib
        self._table = bcc_table
        self._batch = hasattr(lib, "bpf_lookup_batch")
        self._buffers: tuple[Any, Any, int] | None = None
        is_queue = not hasattr(bcc_table, "Key")
        self.key_bytes: int = 0 if is_queue else ctypes.sizeof(bcc_table.Key)
        self.value_bytes: int = ctypes.sizeof(bcc_table.Leaf)

    def items(self) -> list[tuple[Any, Any]]:
        """Every entry, by one batched read where the kernel has it (5.6), else entry by entry.

        An entry that stays in the map during the read is seen exactly once. Values are copies; the 64-bit
        fields of one value are each whole, but may be a few nanoseconds apart.
        """
        entries = self._read_batch(delete=False) if self._batch else None
        if entries is None:
            self._batch = False
            return [(key, value) for key, value in self._table.items()]
        return entries

    def items_and_clear(self) -> list[tuple[Any, Any]]:
        """Every entry, removed while read: what a program adds to an entry in that very moment is lost.

        Exact only for entries that nothing writes any more; for live counters read `items` and subtract.
        """
        entries = self._read_batch(delete=True) if self._batch else None
        if entries is None:
            self._batch = False
            entries = [(key, value) for key, value in self._table.items()]
            self.delete([key for key, _ in entries])
        return entries

    def get(self, key: Any) -> Any | None:
        """The value under a key (a ctypes structure, or an int where the key is one), or None."""
        try:
            return self._table[self._as_key(key)]
        except KeyError:
            return None

    def set(self, key: Any, value: Any) -> None:
        """Write one entry; plain integers are converted."""
        leaf = value if isinstance(value, self._table.Leaf) else self._table.Leaf(value)
        self._table[self._as_key(key)] = leaf

    def delete(self, keys: Iterable[Any]) -> None:
        """Remove entries; a key that is not there is ignored."""
        for key in keys:
            try:
                del self._table[self._as_key(key)]
            except KeyError:
                continue

    def sum_per_cpu(self, index: int) -> int:
        """The sum over all CPUs of one slot of a per-CPU array of integers."""
        return int(sum(self._table[self._table.Key(index)]))

    def pop_all(self, at_most: int) -> list[Any]:
        """Take the oldest entries of a queue map, up to a bound."""
        taken: list[Any] = []
        while len(taken) < at_most:
            try:
                taken.append(self._table.pop())
            except KeyError:
                break
        return taken

    def _as_key(self, key: Any) -> Any:
        return key if isinstance(key, self._table.Key) else self._table.Key(key)

    def _read_batch(self, *, delete: bool) -> list[tuple[Any, Any]] | None:
        call = self._lib.bpf_lookup_and_delete_batch if delete else self._lib.bpf_lookup_batch
        keys, values, room = self._batch_buffers()
        cookie, count, total = ctypes.c_uint32(0), ctypes.c_uint32(0), 0
        while total < room:
            count.value = room - total
            failed = call(
                self._table.map_fd,
                ctypes.byref(cookie) if total else None,
                ctypes.byref(cookie),
                ctypes.byref(keys, self.key_bytes * total),
                ctypes.byref(values, self.value_bytes * total),
                ctypes.byref(count),
            )
            code = ctypes.get_errno()
            if failed and code != errno.ENOENT:
                if total == 0 and code in (
                    errno.EINVAL,
                    errno.ENOTSUP,
                    524,
                ):  # 524: the kernel's own ENOTSUPP
                    return None
                raise OSError(code, f"batched read of a BPF map: {os.strerror(code)}")
            total += count.value
            if failed or count.value == 0:
                break
        key_type, value_type = self._table.Key, self._table.Leaf
        return [
            (
                key_type.from_buffer_copy(keys, self.key_bytes * i),
                value_type.from_buffer_copy(values, self.value_bytes * i),
            )
            for i in range(total)
        ]

    def _batch_buffers(self) -> tuple[Any, Any, int]:
        if self._buffers is None:
            room = self._table.max_entries + SPARE_ENTRIES
            self._buffers = ((self._table.Key * room)(), (self._table.Leaf * room)(), room)
        return self._buffers


def _bpf_module() -> ModuleType:
    if "bcc" in sys.modules and hasattr(sys.modules["bcc"], "BPF"):
        return sys.modules["bcc"]
    spec = importlib.machinery.PathFinder.find_spec("bcc", [str(DEBIAN_PACKAGES)])
    if spec is None or spec.loader is None:
        raise LoaderUnavailable(PYTHON_BPFCC_MISSING)
    module = importlib.util.module_from_spec(spec)
    previous = sys.modules.get("bcc")
    sys.modules["bcc"] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        if previous is None:
            del sys.modules["bcc"]
        else:
            sys.modules["bcc"] = previous
        raise LoaderUnavailable(f"{PYTHON_BPFCC_MISSING}; what is there fails: {_one_line(error)}") from error
    return module


def _why_not_compiled(error: Exception) -> str:
    if os.geteuid() != 0:
        return "BPF needs root, or the capabilities BPF, PERFMON and SYS_ADMIN"
    release = os.uname().release
    if not Path(f"/lib/modules/{release}/build").exists():
        return f"no kernel headers for {release}: install them, or run infra/dev/host-headers"
    return f"the BPF program does not compile here: {_one_line(error)}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
