"""Two readings become the right difference, whatever the counter's width does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.ports.delta import ABSENT, MISSING, Deltas, deltas, widths_of
from streams.contract.counters import counter_spec

WRITES = "hw/rx_write_requests"  # 32 bits, wraps
BUFFER = "ib/excessive_buffer_overrun_errors"  # 4 bits, saturates
DATA = "ib/port_xmit_data"  # 32 bits saturating in the base set, 64 bits in the extended one
BYTES = "net/rx_bytes"  # 64 bits
ACTIVE = "hw/active_qps"  # a gauge


def one(name: str, previous: int, current: int) -> tuple[int, bool, bool]:
    found: Deltas = deltas(
        np.array([previous], dtype=np.uint64),
        np.array([current], dtype=np.uint64),
        widths_of([counter_spec(name)]),
    )
    return int(found.values[0]), bool(found.resets[0]), bool(found.saturated[0])


@pytest.mark.parametrize(
    ("name", "previous", "current", "expected"),
    [
        (WRITES, 4_294_967_290, 10, (16, False, False)),
        (WRITES, 3_809_045_607, 3_809_045_607, (0, False, False)),
        (WRITES, 1_000, 0, (MISSING, True, False)),
        (BYTES, 1_000, 999, (MISSING, True, False)),
        (BYTES, 2**64 - 2, 5, (7, False, False)),
        (BYTES, 2**63, 2**63 + 9, (9, False, False)),
        (BYTES, 0, 2**63, (MISSING, True, False)),
        (BUFFER, 15, 15, (MISSING, False, True)),
        (BUFFER, 12, 15, (3, False, True)),
        (BUFFER, 15, 0, (MISSING, True, False)),
        (BUFFER, 0, 0, (0, False, False)),
        ("ib/port_xmit_wait", 4_294_967_295, 4_294_967_295, (MISSING, False, True)),
        (DATA, 230_442_669_431_839, 230_442_669_431_940, (101, False, False)),
        (DATA, 4_294_967_295, 4_294_967_299, (4, False, False)),
        (DATA, 10, 2**33 + 20, (2**33 + 10, False, False)),
        (DATA, 230_442_669_431_839, 3, (MISSING, True, False)),
        (ACTIVE, 9, 4, (4, False, False)),
        (ACTIVE, ABSENT, 4, (4, False, False)),
        (ACTIVE, 9, 2**63, (MISSING, False, False)),
        (BYTES, ABSENT, 4, (MISSING, False, False)),
        (BYTES, 4, ABSENT, (MISSING, False, False)),
    ],
)
def test_a_pair_of_readings_gives_value_reset_and_saturation(
    name: str, previous: int, current: int, expected: tuple[int, bool, bool]
) -> None:
    assert one(name, previous, current) == expected


@given(start=st.integers(0, 2**32 - 1), steps=st.lists(st.integers(0, 2**31 - 1), max_size=20))
def test_a_32_bit_counter_sums_to_what_was_counted_however_often_it_wraps(start: int, steps: list[int]) -> None:
    reading, total = start, 0
    for step in steps:
        following = (reading + step) % 2**32
        value, reset, _ = one(WRITES, reading, following)
        assert not reset
        total += value
        reading = following
    assert total == sum(steps)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([WRITES, BUFFER, DATA, BYTES, ACTIVE]),
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**64 - 1),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_any_readings_give_a_non_negative_value_or_missing_and_each_row_stands_alone(
    rows: list[tuple[str, int, int]],
) -> None:
    found = deltas(
        np.array([row[1] for row in rows], dtype=np.uint64),
        np.array([row[2] for row in rows], dtype=np.uint64),
        widths_of([counter_spec(row[0]) for row in rows]),
    )
    for index, row in enumerate(rows):
        value = int(found.values[index])
        assert value >= 0 or value == MISSING
        assert (value, bool(found.resets[index]), bool(found.saturated[index])) == one(*row)
