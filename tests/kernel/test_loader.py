"""The loader says in one line what is missing, reads maps exactly, and leaves nothing attached."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from producers.kernel import loader
from producers.kernel.elf_symbols import read_exports
from producers.kernel.loader import LoaderUnavailable, ProbeUnavailable, Program, load
from tests.kernel.conftest import libc_path

SOURCE = """
#include <uapi/linux/ptrace.h>
struct key { u64 argument; u32 tgid; u32 unused; };
struct value { u64 calls; };
BPF_HASH(counts, struct key, struct value, 64);
BPF_PERCPU_ARRAY(totals, u64, 2);
BPF_ARRAY(settings, s64, 1);
BPF_QUEUE(events, struct value, 4);
int count(struct pt_regs *ctx) {
  struct key key = {.argument = PT_REGS_PARM1(ctx), .tgid = bpf_get_current_pid_tgid() >> 32};
  struct value fresh = {};
  struct value *value = counts.lookup_or_try_init(&key, &fresh);
  if (value) {
    __sync_fetch_and_add(&value->calls, 1);
    events.push(value, 0);
  }
  int one = 1;
  u64 *total = totals.lookup(&one);
  if (total)
    *total += 1;
  return 0;
}
"""
LIBC = ctypes.CDLL("libc.so.6", use_errno=True)


@pytest.fixture(scope="module")
def program(bpf: None) -> Iterator[Program]:
    loaded = load(SOURCE)
    loaded.attach_uprobe(libc_path(), read_exports(libc_path()).offsets["labs"], "count", pid=os.getpid())
    yield loaded
    loaded.close()
    loaded.close()


@pytest.fixture
def empty(program: Program) -> Program:
    program.table("counts").items_and_clear()
    program.table("events").pop_all(100)
    return program


def counts(program: Program) -> dict[int, int]:
    return {key.argument: value.calls for key, value in program.table("counts").items()}


@pytest.mark.kernel
def test_a_batched_read_sees_every_entry_once_and_leaves_it(empty: Program) -> None:
    for argument in range(40):
        for _ in range(argument + 1):
            LIBC.labs(argument)

    expected = {argument: argument + 1 for argument in range(40)}
    assert counts(empty) == expected
    assert counts(empty) == expected


@pytest.mark.kernel
def test_reading_entry_by_entry_gives_the_same(empty: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    for argument in range(10):
        LIBC.labs(argument)

    monkeypatch.setattr(empty.table("counts"), "_batch", False)

    assert counts(empty) == dict.fromkeys(range(10), 1)
    assert len(empty.table("counts").items_and_clear()) == 10
    assert counts(empty) == {}


@pytest.mark.kernel
def test_clearing_takes_what_was_read_and_deleting_what_is_named(empty: Program) -> None:
    table = empty.table("counts")
    for argument in (1, 2, 3):
        LIBC.labs(argument)
    first, *others = table.items()

    table.delete([first[0], first[0]])

    assert counts(empty) == {key.argument: 1 for key, _ in others}
    assert table.get(first[0]) is None
    assert len(table.items_and_clear()) == 2
    assert table.items() == []


@pytest.mark.kernel
def test_a_full_map_and_a_full_queue_refuse_and_keep_what_they_have(empty: Program) -> None:
    for argument in range(100):
        LIBC.labs(argument)

    assert counts(empty) == dict.fromkeys(range(64), 1)
    assert [value.calls for value in empty.table("events").pop_all(2)] == [1, 1]
    assert [value.calls for value in empty.table("events").pop_all(100)] == [1, 1]


@pytest.mark.kernel
def test_per_cpu_counters_are_summed_and_settings_can_be_written(empty: Program) -> None:
    before = empty.table("totals").sum_per_cpu(1)
    for _ in range(7):
        LIBC.labs(5)
    empty.table("settings").set(0, -5)

    assert empty.table("totals").sum_per_cpu(1) - before == 7
    setting = empty.table("settings").get(0)
    assert setting is not None
    assert setting.value == -5


@pytest.mark.kernel
def test_a_detached_probe_counts_no_more(empty: Program) -> None:
    path, offset = libc_path(), read_exports(libc_path()).offsets["llabs"]
    handle = empty.attach_uprobe(path, offset, "count", pid=os.getpid())
    LIBC.llabs(ctypes.c_longlong(77))
    empty.detach(handle, handle)
    LIBC.llabs(ctypes.c_longlong(78))

    assert counts(empty) == {77: 1}


@pytest.mark.kernel
def test_what_cannot_attach_says_so_in_one_line(program: Program) -> None:
    with pytest.raises(ProbeUnavailable) as no_file:
        program.attach_uprobe("/no/such/library.so", 64, "count")
    with pytest.raises(ProbeUnavailable) as no_program:
        program.attach_uretprobe(libc_path(), 64, "no_such_program")
    with pytest.raises(ProbeUnavailable) as no_symbol:
        program.attach_kprobe("no_such_kernel_function", "count")

    assert no_file.value.reason == "/no/such/library.so at offset 0x40: No such file or directory"
    assert no_program.value.reason.startswith("no_such_program: ")
    assert no_symbol.value.reason.startswith("no_such_kernel_function: ")
    assert all("\n" not in error.value.reason for error in (no_file, no_program, no_symbol))


@pytest.mark.kernel
def test_a_program_that_does_not_compile_is_named_as_such(bpf: None) -> None:
    with pytest.raises(LoaderUnavailable, match=r"^the BPF program does not compile here: "):
        load("this is no C")


def test_without_bcc_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loader, "DEBIAN_PACKAGES", tmp_path)
    monkeypatch.delitem(sys.modules, "bcc", raising=False)

    with pytest.raises(LoaderUnavailable) as missing:
        load(SOURCE)

    assert str(missing.value) == loader.PYTHON_BPFCC_MISSING


def test_importing_the_loader_neither_imports_bcc_nor_opens_a_way_to_the_system_packages() -> None:
    code = "import sys; old = [*sys.path]; import producers.kernel.nccl; print('bcc' in sys.modules, old == sys.path)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout == "False True\n"
