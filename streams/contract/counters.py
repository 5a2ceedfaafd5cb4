"""What each port counter means: its unit, whether it counts or holds, and what happens at its maximum."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

# A name is "<source>/<the kernel's own name>", so that two sources never collide:
#   ib/ ports/N/counters · hw/ hw_counters · net/ netdev statistics · eth/ ethtool -S · port/ ours.

LIFETIME_NAMES = 65_536  # bound of the lookup cache; a large node has a few thousand distinct names


class CounterKind(StrEnum):
    """How to read a value: the difference of two readings, the reading itself, or not at all."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SETTING = "setting"


class AtMaximum(StrEnum):
    """What the hardware does at the largest value: start again from zero, or stay there for ever."""

    WRAPS = "wraps"
    SATURATES = "saturates"


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSpec:
    """One counter's meaning; `raw * multiplier` is in `unit`, and `known` is False for a guess by default."""

    unit: str
    kind: CounterKind = CounterKind.COUNTER
    width_bits: int = 64
    at_maximum: AtMaximum = AtMaximum.WRAPS
    multiplier: int = 1
    known: bool = True

    @property
    def maximum(self) -> int:
        """The largest raw value that the stated width can hold."""
        return int(2**self.width_bits - 1)


def _saturating(unit: str, width_bits: int, multiplier: int = 1) -> CounterSpec:
    return CounterSpec(unit=unit, width_bits=width_bits, at_maximum=AtMaximum.SATURATES, multiplier=multiplier)


def _counter(unit: str, width_bits: int = 64) -> CounterSpec:
    return CounterSpec(unit=unit, width_bits=width_bits)


def _gauge(unit: str) -> CounterSpec:
    return CounterSpec(unit=unit, kind=CounterKind.GAUGE)


UNKNOWN = CounterSpec(unit="events", known=False)

# Widths: drivers/infiniband/core/sysfs.c (PMA attributes saturate) and hw/mlx5/counters.c (Q counters are
# be32 registers widened to u64, so they wrap). The base PMA set has 32-bit data and packet counters, the
# extended set 64-bit ones under the same names: a value above the stated maximum proves the wider kind.
_RULES: tuple[tuple[str, CounterSpec], ...] = (
    (r"port/(phys_)?state", _gauge("code")),
    # ib/: PMA counters
    (r"ib/port_(xmit|rcv)_data", _saturating("bytes", 32, multiplier=4)),
    (r"ib/port_(xmit|rcv)_data_64", CounterSpec(unit="bytes", multiplier=4)),
    (r"ib/port_(xmit|rcv)_packets", _saturating("packets", 32)),
    (r"ib/(port_)?((uni|multi)cast_)?(xmit|rcv)_packets(_64)?", _counter("packets")),
    (r"ib/port_xmit_wait", _saturating("ticks", 32)),
    (r"ib/(local_link_integrity|excessive_buffer_overrun)_errors", _saturating("events", 4)),
    (r"ib/(link_error_recovery|link_downed|port_(xmit|rcv)_constraint_errors)", _saturating("events", 8)),
    (
        r"ib/(symbol_error|VL15_dropped|port_(xmit|rcv)_discards|port_rcv_errors"
        r"|port_rcv_remote_physical_errors|port_rcv_switch_relay_errors)",
        _saturating("events", 16),
    ),
    # hw/: settings and gauges first, then mlx5's 32-bit Q counters, then what is known to be 64-bit
    (r"hw/lifespan", CounterSpec(unit="ms", kind=CounterKind.SETTING)),
    (r"hw/(active|watermark)_\w+", _gauge("objects")),
    (
        r"hw/(rx_(write|read|atomic)_requests|rx_dct_connect|out_of_buffer|out_of_sequence|duplicate_request"
        r"|rnr_nak_retry_err|packet_seq_err|implied_nak_seq_err|local_ack_timeout_err"
        r"|resp_(local_length_error|cqe_error|cqe_flush_error|remote_access_errors)"
        r"|req_(cqe_error|cqe_flush_error|remote_invalid_request|remote_access_errors"
        r"|transport_retries_exceeded|rnr_retries_exceeded)"
        r"|roce_adp_retrans(_to)?|roce_slow_restart(_cnps|_trans)?)",
        _counter("events", 32),
    ),
    (r"hw/(rp_cnp_\w+|np_\w+|rx_icrc_encapsulated|cc_\w+_pkts)", _counter("packets")),
    (r"hw/\w*([_a-z]bytes|Octets)\w*", _counter("bytes")),
    (r"hw/\w*(_pkts|_packets|Pkts)", _counter("packets")),
    (r"hw/link_downed", _counter("events")),
    # net/ and eth/
    (r"net/[rt]x_bytes", _counter("bytes")),
    (r"net/[rt]x_packets", _counter("packets")),
    (r"net/\w+", _counter("events")),
    (r"eth/outbound_pci_stalled_(rd|wr)", _gauge("percent")),
    (r"eth/outbound_pci_stalled_(rd|wr)_events", _counter("s")),
    (r"eth/(peer_ifindex|link_speed|\w*temperature\w*)", _gauge("value")),
    (r"eth/.*_(pause_duration|duration_us)", _counter("us")),
    (r"eth/.*bytes(_phy|_nic|\.nic)?", _counter("bytes")),
    (r"eth/.*(packets|pkts)(_phy|_nic|\.nic)?", _counter("packets")),
    (r"eth/.*(pause|pause_transition|_xon|_xoff|pause_ctrl_phy|frames_pri\d+)(\.nic)?", _counter("frames")),
    (
        r"eth/.*_(discards?|dropped|drops?|marked|errors?|err_phy|storm_(warning|error)_events)",
        _counter("events"),
    ),
)
_COMPILED = tuple((re.compile(pattern), spec) for pattern, spec in _RULES)

# One row per queue, channel or vector: hundreds a device, of no use per port, and they would drown the rest.
_PER_QUEUE = re.compile(
    r"eth/(\[\d+\]: .*|[rt]xq?[-_]?\d+[-_:. ].*|ch\d+_.*|[rt]x_queue_\d+.*|queue_\d+.*|veb\..*)"
    r"|hw/(.*,\d+|RcvHdrOvr\d+)"
)


@lru_cache(maxsize=LIFETIME_NAMES)
def counter_spec(name: str) -> CounterSpec:
    """The meaning of a prefixed name such as `ib/port_xmit_data`; `UNKNOWN` if it is not listed."""
    for pattern, spec in _COMPILED:
        if pattern.fullmatch(name):
            return spec
    return UNKNOWN


def is_published(name: str) -> bool:
    """False for rows that exist once per queue, channel or vector; those are counted, not sent."""
    return _PER_QUEUE.fullmatch(name) is None
