"""Rate and state texts of real devices are understood as the corpus says."""

import json

import pytest

from producers.ports.fields import StateCode, parse_rate_bps, parse_state
from tests.paths import shared


def test_every_rate_text_of_the_corpus_gives_its_bits_per_second() -> None:
    for case in json.loads(shared("corpus", "sysfs", "rate_strings.json").read_text()):
        assert parse_rate_bps(case["input"]) == case["bits_per_s"], case


def test_every_state_text_of_the_corpus_gives_its_number_and_name() -> None:
    for case in json.loads(shared("corpus", "sysfs", "state_strings.json").read_text()):
        assert parse_state(case["input"]) == StateCode(code=case["id"], name=case["name"]), case


def test_a_fraction_of_a_gigabit_is_exact() -> None:
    assert parse_rate_bps("2.5 Gb/sec (1X SDR)\n") == 2_500_000_000


@pytest.mark.parametrize("text", ["", "ACTIVE", "x: ACTIVE", "4:", "4"])
def test_a_text_that_is_no_state_is_unknown(text: str) -> None:
    assert parse_state(text) is None
