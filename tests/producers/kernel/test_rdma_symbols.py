"""Choosing the kernel function to probe among a compiler's clones."""

from pathlib import Path

import pytest

from producers.kernel.rdma_symbols import SymbolUnavailable, probe_symbol, read_functions

KALLSYMS = """\
ffffffffc0001000 T rdma_restrack_add\t[ib_core]
ffffffffc0001100 r __ksymtab_rdma_restrack_add\t[ib_core]
ffffffffc0001200 t __pfx_rdma_restrack_add\t[ib_core]
ffffffffc0001300 t rxe_xmit_packet.isra.0\t[rdma_rxe]
ffffffffc0001400 t ib_modify_qp.llvm.1234\t[ib_core]
ffffffffc0001500 t ib_modify_qp.cold\t[ib_core]
ffffffffc0001600 d rdma_restrack_del\t[ib_core]
ffffffff81000000 A fixed_percpu_data
"""


@pytest.fixture
def functions(tmp_path: Path) -> dict[str, list[str]]:
    (tmp_path / "kallsyms").write_text(KALLSYMS)
    names = ["rdma_restrack_add", "rdma_restrack_del", "rxe_xmit_packet", "ib_modify_qp"]
    return read_functions(names, tmp_path / "kallsyms")


def test_only_code_under_the_wanted_names_is_found(functions: dict[str, list[str]]) -> None:
    assert functions == {
        "rdma_restrack_add": ["rdma_restrack_add"],
        "rdma_restrack_del": [],
        "rxe_xmit_packet": ["rxe_xmit_packet.isra.0"],
        "ib_modify_qp": ["ib_modify_qp.llvm.1234", "ib_modify_qp.cold"],
    }


def test_the_function_itself_is_preferred(functions: dict[str, list[str]]) -> None:
    assert probe_symbol(functions, "rdma_restrack_add") == "rdma_restrack_add"


def test_a_clone_with_the_same_arguments_will_do(functions: dict[str, list[str]]) -> None:
    assert probe_symbol(functions, "ib_modify_qp") == "ib_modify_qp.llvm.1234"


def test_a_clone_with_other_arguments_is_named_and_refused(functions: dict[str, list[str]]) -> None:
    with pytest.raises(SymbolUnavailable, match=r"only rxe_xmit_packet\.isra\.0, whose arguments are not those"):
        probe_symbol(functions, "rxe_xmit_packet")


@pytest.mark.parametrize("name", ["rdma_restrack_del", "never_asked_for"])
def test_a_missing_function_is_named(functions: dict[str, list[str]], name: str) -> None:
    with pytest.raises(SymbolUnavailable, match=f"the kernel has no function {name}"):
        probe_symbol(functions, name)
