"""Bytes are exact or unknown, and a unique id has one hash on every rank."""

from typing import Any

import pytest

from producers.kernel.nccl_rows import CallRow, CommEvent, CommFunction, call_bytes, unique_id_hash
from streams.contract.calls import Op


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(0, 3), (1, 3), (2, 12), (3, 12), (4, 24), (5, 24), (6, 6), (7, 12), (8, 24), (9, 6), (10, 3), (11, 3)],
)
def test_bytes_are_count_times_the_width_of_the_type(dtype: int, expected: int) -> None:
    assert call_bytes(3, dtype) == expected


def test_bytes_of_a_type_that_we_do_not_know_are_unknown_and_never_guessed() -> None:
    assert call_bytes(3, 12) is None


def test_an_operation_without_data_moves_no_bytes() -> None:
    assert call_bytes(0, None) == 0


# Computed by getHash of libnccl 2.21.5 itself, called through its address.
@pytest.mark.parametrize(
    ("unique_id", "expected"),
    [
        (bytes(range(128)), "0xbf47c767cbdf3105"),
        (bytes(range(128, 256)), "0x3758fa770a673905"),
        (bytes(128), "0x90116b2eaa8b6505"),
    ],
)
def test_the_hash_of_a_unique_id_is_the_one_that_nccl_logs(unique_id: bytes, expected: str) -> None:
    assert unique_id_hash(unique_id) == expected


def test_a_row_knows_the_bytes_of_one_call() -> None:
    row = CallRow(
        tick=1,
        pid=2,
        cgroup_id=3,
        comm_ptr=4,
        op=Op.ALL_REDUCE,
        dtype=9,
        count=1000,
        calls=5,
        failed=0,
        first_seq=1,
        last_seq=5,
        first_ns=100_000_000,
        last_ns=100_000_001,
    )

    assert row.call_bytes == 2000


@pytest.mark.parametrize(("result", "failed"), [(0, False), (7, False), (1, True), (4, True)])
def test_in_progress_is_no_failure(result: int, failed: bool) -> None:
    values: dict[str, Any] = dict.fromkeys(CommEvent.__dataclass_fields__)
    values |= {"function": CommFunction.SPLIT, "result": result}

    assert CommEvent(**values).failed is failed


def test_births_are_the_functions_that_make_a_communicator() -> None:
    values: dict[str, Any] = dict.fromkeys(CommEvent.__dataclass_fields__)

    births = [function.name for function in CommFunction if CommEvent(**(values | {"function": function})).is_birth]

    assert births == ["INIT_RANK", "INIT_RANK_CONFIG", "INIT_RANK_SCALABLE", "INIT_ALL", "SPLIT", "SHRINK", "GROW"]
