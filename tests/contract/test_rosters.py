"""A slice's roster travels as MessagePack: equal ones as equal bytes, older and newer writers' ones readable."""

from __future__ import annotations

import msgspec
import pytest

from streams.contract.errors import InvalidRecordError
from streams.contract.header import Rung
from streams.contract.inputs import CapacitySource
from streams.contract.rosters import CACHED_ROSTERS, MAX_ROSTER_BYTES, roster_bytes, roster_of
from streams.contract.slices import SlicePort, SliceRoster
from tests.contract.examples import ROSTER

pack = msgspec.msgpack.encode


def test_every_field_comes_back() -> None:
    assert roster_of(roster_bytes(ROSTER)) == ROSTER
    silent = [f.name for f in msgspec.structs.fields(SliceRoster) if getattr(ROSTER, f.name) in (None, [], "", 0)]
    assert silent == []


def test_equal_rosters_are_equal_bytes_and_are_read_once() -> None:
    again = msgspec.msgpack.decode(pack(ROSTER), type=SliceRoster)
    first, second = roster_bytes(ROSTER), bytes(bytearray(roster_bytes(again)))
    assert first == second
    assert roster_of(first) is roster_of(second)


def test_no_bytes_are_a_roster_of_nobody() -> None:
    assert roster_of(b"") == SliceRoster()


def test_a_newer_writers_fields_and_symbols_do_not_upset_an_older_reader() -> None:
    port = {"device": "mlx5_0", "port": 1, "capacity_source": "guessed", "colour": "red"}
    newer = pack({"job_name": "llm", "ports": [port], "bytes_rung": "telepathy", "hats": [1, {"a": None}]})
    assert roster_of(newer) == SliceRoster(
        job_name="llm",
        ports=[SlicePort(device="mlx5_0", port=1, capacity_source=CapacitySource.UNKNOWN)],
        bytes_rung=Rung.UNKNOWN,
    )


def test_an_older_writers_missing_fields_are_their_defaults() -> None:
    assert roster_of(pack({"tenant": "research"})) == SliceRoster(tenant="research")


NO_ROSTERS = {
    "rubbish": b"\xc1",
    "cut short": roster_bytes(ROSTER)[:-1],
    "bytes left over": roster_bytes(ROSTER) + b"\0",
    "a list": pack([1]),
    "a float in an integer": pack({"gpus_total": 1.5}),
    "a string in a list": pack({"ports": "mlx5_0"}),
    "a port without its device": pack({"ports": [{"port": 1}]}),
    "ten thousand lists in each other": b"\x81\xa1x" + b"\x91" * 10_000 + b"\x90",
    "too much": pack({"tenant": "x" * MAX_ROSTER_BYTES}),
}


@pytest.mark.parametrize("what", NO_ROSTERS)
def test_what_is_no_roster_is_refused(what: str) -> None:
    with pytest.raises(InvalidRecordError):
        roster_of(NO_ROSTERS[what])


def test_rosters_read_are_forgotten_in_the_end() -> None:
    for number in range(CACHED_ROSTERS + 10):
        roster_of(pack({"job_name": str(number)}))
    assert roster_of.cache_info().currsize == CACHED_ROSTERS
