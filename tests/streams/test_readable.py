"""People see numbers beside the names they belong to, never packed bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streams.contract.topics import BY_NAME
from streams.readable import readable
from tests.contract.examples import EXAMPLES, NCCL, NIC, SLICE


@pytest.mark.parametrize("key", EXAMPLES, ids=".".join)
def test_every_record_is_plain_json(key: tuple[str, str]) -> None:
    record = EXAMPLES[key]
    assert isinstance(json.loads(json.dumps(readable(record))), dict)
    assert BY_NAME[key[0]].record is type(record)


def test_counters_stand_inside_their_port_and_an_unread_tick_is_null() -> None:
    fields: Any = readable(NIC)
    assert fields["ports"][0]["counters"] == {
        "ib/port_xmit_data": [1, 2, 3, 4, 5],
        "hw/rnr_nak_retry_err": [0] * 5,
        "port/state": [4] * 5,
    }
    assert fields["ports"][1]["counters"] == {"ib/port_xmit_data": [2**62, 0, None, 0, 9]}
    assert fields["holdings"] == [
        {"holder": 0, "device": "mlx5_0", "features": {"qp_live": [64] * 5, "tx_bytes": [0, 4096, 0, 0, 1]}}
    ]
    assert "counter_names" not in fields


def test_calls_have_their_columns_names_and_operations_in_words() -> None:
    fields: Any = readable(NCCL)
    (row,) = fields["rows"]
    assert (row["op"], row["calls"], row["failed"], row["timing"]) == ("all_reduce", 3, 1, "enqueue")
    assert (row["first_seq"], row["last_us"]) == (10, 90_000)


def test_a_slices_features_stand_inside_ports_and_suspects() -> None:
    fields: Any = readable(SLICE)
    (port,), (suspect,) = fields["ports"], fields["suspects"]
    assert port["features"] == {"tx_bytes": [4, 8, 12, 16, 20]}
    assert port["job_features"] == {"tx_bytes": [0, 4096, 0, 0, 1]}
    assert suspect["features"] == {"qp_live": [512] * 5}
    assert (fields["job_name"], fields["bytes_rung"]) == ("llm", "kernel_probes")
    assert not fields.keys() & {"roster", "feature_names"}
