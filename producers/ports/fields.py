"""Meaning of the text in sysfs' `rate` and `state` files."""

import re
from dataclasses import dataclass
from decimal import Decimal

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([MGT])[bB]/sec\b")
_STATE = re.compile(r"\s*(\d+):\s*(\S.*?)\s*")
_BITS = {"M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCode:
    """A port's logical or physical state: the kernel's number and its name."""

    code: int
    name: str


def parse_rate_bps(text: str) -> int | None:
    """Bits a second of "100 Gb/sec (4X EDR)"; 0 is a real answer ("0 GB/sec"), None means unknown."""
    match = _RATE.match(text.strip())
    if match is None:
        return None
    return int(Decimal(match[1]) * _BITS[match[2]])


def parse_state(text: str) -> StateCode | None:
    """The parts of "4: ACTIVE"; None for anything else."""
    match = _STATE.fullmatch(text)
    return None if match is None else StateCode(code=int(match[1]), name=match[2])
