"""A compiled cut equals the plain sum over rows, and each port gives the bytes of its best source."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streams.contract import features
from streams.contract.series import MISSING, PackedSeries, Series, pack, unpack
from streams.core.cut import NOWHERE, Target, compile_cut, cut, cut_all, moving_rows, together
from streams.core.port_features import PORT_FEATURE_NAMES, name_map, port_target

TICKS, ENTITIES, NAMES = 3, 3, 4
VALUES = st.sampled_from([0, 0, 1, 7, MISSING])
ROWS = st.dictionaries(
    st.tuples(st.integers(0, ENTITIES - 1), st.integers(0, NAMES - 1)),
    st.lists(VALUES, min_size=TICKS, max_size=TICKS),
)
NEW_IDS = st.lists(st.integers(-1, 4), min_size=ENTITIES * NAMES, max_size=ENTITIES * NAMES)
FACTORS = st.lists(st.sampled_from([1, 4]), min_size=ENTITIES * NAMES, max_size=ENTITIES * NAMES)


def packed(rows: dict[tuple[int, int], list[int]], ticks: int = TICKS) -> PackedSeries:
    return pack(
        Series(
            entity=np.array([entity for entity, _ in rows], np.int32),
            name=np.array([name for _, name in rows], np.int32),
            values=np.array(list(rows.values()), np.int64).reshape(-1, ticks),
        )
    )


def as_rows(series: PackedSeries, ticks: int, names: int) -> dict[int, list[int]]:
    found = unpack(series, ticks=ticks, entities=100, names=names)
    return {
        int(entity) << 16 | int(name): row.tolist()
        for entity, name, row in zip(found.entity, found.name, found.values, strict=True)
    }


@given(rows=ROWS, new_ids=NEW_IDS, factors=FACTORS, keep_zeros=st.booleans())
def test_a_cut_adds_what_shares_an_id_scales_it_and_keeps_missing_ticks_missing(
    rows: dict[tuple[int, int], list[int]], new_ids: list[int], factors: list[int], keep_zeros: bool
) -> None:
    series = packed(rows)
    target = Target(names=NAMES, new_id=np.array(new_ids), multiplier=np.array(factors))
    moving = moving_rows(TICKS, series)
    found = cut(compile_cut(series, target, keep_zeros=keep_zeros), moving, missing=bool((moving == MISSING).any()))

    expected: dict[int, list[int]] = {}
    for (entity, name), row in rows.items():
        place = entity * NAMES + name
        if new_ids[place] == NOWHERE or set(row) == {MISSING}:
            continue
        sums = expected.setdefault(new_ids[place], [0] * TICKS)
        for tick, value in enumerate(row):
            known = sums[tick] != MISSING and value != MISSING
            sums[tick] = sums[tick] + value * factors[place] if known else MISSING
    if not keep_zeros:
        expected = {key: row for key, row in expected.items() if any(row)}
    told = as_rows(found, TICKS, 1 << 16)
    if not keep_zeros:
        told = {key: row for key, row in told.items() if any(row)}
    assert told == expected


def port_features(rows: dict[str, list[int]]) -> dict[str, list[int]]:
    names = tuple(rows)
    series = packed({(0, index): row for index, row in enumerate(rows.values())}, ticks=2)
    target = port_target(series, name_map(names), np.array([0]))
    found = cut(compile_cut(series, target, keep_zeros=True), moving_rows(2, series), missing=False)
    return {PORT_FEATURE_NAMES[key]: row for key, row in as_rows(found, 2, 1 << 16).items()}


def test_roce_bytes_come_from_the_infiniband_counter_in_bytes_and_not_twice() -> None:
    told = port_features({"net/tx_bytes": [9, 9], "ib/port_xmit_data": [10, 20], "eth/tx_bytes_phy": [1, 2]})
    assert told == {features.PORT_TX_BYTES: [40, 80]}


def test_a_source_that_stands_still_is_still_the_better_source() -> None:
    assert port_features({"net/tx_bytes": [9, 8], "ib/port_xmit_data": [0, 0]}) == {features.PORT_TX_BYTES: [0, 0]}


def test_soft_roce_bytes_come_from_its_netdev() -> None:
    assert port_features({"net/tx_bytes": [5, 6], "net/rx_bytes": [1, 2]}) == {
        features.PORT_TX_BYTES: [5, 6],
        features.PORT_RX_BYTES: [1, 2],
    }


def test_pause_times_of_all_priorities_are_added_and_unknown_counters_ignored() -> None:
    told = port_features(
        {"eth/tx_prio0_pause_duration": [1, 2], "eth/tx_prio3_pause_duration": [10, 0], "eth/x": [5, 6]}
    )
    assert told == {features.PORT_TX_PAUSE_US: [11, 2]}


def test_the_ports_state_is_a_level() -> None:
    assert port_features({"port/state": [4, 1]}) == {features.PORT_STATE: [4, 1]}


@given(rows=ROWS, held=ROWS, new_ids=st.lists(NEW_IDS, min_size=2, max_size=2), factors=FACTORS)
def test_cuts_made_together_are_those_made_one_by_one(
    rows: dict[tuple[int, int], list[int]],
    held: dict[tuple[int, int], list[int]],
    new_ids: list[list[int]],
    factors: list[int],
) -> None:
    both = packed(rows), packed(held)
    alone, plans = [], []
    for ids in new_ids:
        scaled = Target(names=NAMES, new_id=np.array(ids), multiplier=np.array(factors))
        plain = Target(names=NAMES, new_id=np.array(ids))
        pair = compile_cut(both[0], scaled, keep_zeros=True), compile_cut(both[1], plain, keep_zeros=False)
        plans.append(pair)
        alone.append(
            [cut(plan, moving_rows(TICKS, series), missing=True) for plan, series in zip(pair, both, strict=True)]
        )

    found = cut_all(together(plans, second_from=len(both[0].moving_ids) // 4), moving_rows(TICKS, *both), missing=True)

    fields = PackedSeries.__struct_fields__
    assert found == [
        PackedSeries(**{name: getattr(first, name) + getattr(second, name) for name in fields})
        for first, second in alone
    ]
