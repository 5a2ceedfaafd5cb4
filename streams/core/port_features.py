"""What raw counters of many drivers say in the few features that the detector reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from streams.contract import features as names
from streams.contract.counters import counter_spec
from streams.contract.series import PackedSeries
from streams.core.cut import NOWHERE, Target

# The first source that a port has is taken; the others count the same bytes again. RoCE bytes pass mlx5's
# port_xmit_data but not its netdev's; Soft-RoCE has no InfiniBand counters and passes its netdev.
_FIRST_OF = {
    names.PORT_TX_BYTES: (
        "ib/port_xmit_data_64",
        "ib/port_xmit_data",
        "hw/tx_bytes",
        "hw/ip4OutOctets",
        "eth/tx_bytes_phy",
        "net/tx_bytes",
    ),
    names.PORT_RX_BYTES: (
        "ib/port_rcv_data_64",
        "ib/port_rcv_data",
        "hw/rx_bytes",
        "hw/ip4InOctets",
        "eth/rx_bytes_phy",
        "net/rx_bytes",
    ),
    names.PORT_LINK_DOWNED: ("ib/link_downed", "hw/link_downed", "eth/link_down_events_phy"),
    names.PORT_STATE: ("port/state",),
}
_SUM_OF = (
    (names.PORT_TX_PAUSE_US, r"eth/tx_(prio\d_|global_)?pause_duration"),
    (names.PORT_RX_PAUSE_US, r"eth/rx_(prio\d_|global_)?pause_duration"),
    (names.PORT_CNP_HANDLED, r"hw/rp_cnp_handled"),
    (names.PORT_CNP_SENT, r"hw/np_cnp_sent"),
    (names.PORT_ECN_MARKED, r"hw/np_ecn_marked_roce_packets"),
    (names.PORT_RNR, r"hw/(rnr_nak_retry_err|out_of_buffer|rcvd_rnr_err|send_rnr_err)"),
    (names.PORT_OUT_OF_SEQUENCE, r"hw/(out_of_sequence|packet_seq_err|out_of_seq_request|rcvd_seq_err)"),
    (names.PORT_DISCARDS, r"ib/port_(xmit_discards|rcv_errors)|eth/(rx_discards_phy|tx_discards_phy)"),
    (names.PORT_SYMBOL_ERRORS, r"ib/symbol_error|eth/rx_pcs_symbol_err_phy"),
)
_COMPILED = tuple((feature, re.compile(pattern)) for feature, pattern in _SUM_OF)
_FEATURE_INDEX = {name: index for index, name in enumerate(names.PORT_FEATURES)}
PORT_FEATURE_NAMES = list(names.PORT_FEATURES)
LAYOUTS = 256  # Cached name lists; a fleet has as many as it has kinds of nodes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NameMap:
    """For each raw name: its feature (-1: none), its rank among equal sources (0: summed), its multiplier."""

    feature: NDArray[np.int64]
    rank: NDArray[np.int64]
    multiplier: NDArray[np.int64]


@lru_cache(maxsize=LAYOUTS)
def name_map(counter_names: tuple[str, ...]) -> NameMap:
    """Which of a record's counter names feed which feature."""
    found = [_meaning(name) for name in counter_names]
    columns = np.array(found, np.int64).reshape(-1, 3)
    return NameMap(feature=columns[:, 0], rank=columns[:, 1], multiplier=columns[:, 2])


def port_target(packed: PackedSeries, mapping: NameMap, port: NDArray[np.int64]) -> Target:
    """Where each raw counter goes: `port[p]` is the new index of port p, or NOWHERE.

    Of several sources of the same bytes a port gives to the first that it was read from, whether it moved or not.
    """
    names, features = len(mapping.feature), len(PORT_FEATURE_NAMES)
    read = np.zeros((len(port), names), bool)
    for raw in (packed.moving_ids, packed.steady_ids):
        ids = np.frombuffer(raw, np.dtype("<u4")).astype(np.int64)
        read[ids >> 16, ids & 0xFFFF] = True
    new_id = np.where(
        read & (mapping.feature >= 0) & (port[:, None] >= 0), port[:, None] << 16 | mapping.feature, NOWHERE
    )
    for feature in range(features):
        sources = np.flatnonzero((mapping.feature == feature) & (mapping.rank > 0))
        best = np.zeros(len(port), bool)
        for name in sources[np.argsort(mapping.rank[sources])].tolist():
            new_id[best, name] = NOWHERE
            best |= read[:, name]
    multiplier = np.broadcast_to(mapping.multiplier, (len(port), names))
    return Target(names=names, new_id=new_id.ravel(), multiplier=np.ascontiguousarray(multiplier).ravel())


def _meaning(name: str) -> tuple[int, int, int]:
    multiplier = counter_spec(name).multiplier
    for feature, sources in _FIRST_OF.items():
        if name in sources:
            return _FEATURE_INDEX[feature], 1 + sources.index(name), multiplier
    for feature, pattern in _COMPILED:
        if pattern.fullmatch(name):
            return _FEATURE_INDEX[feature], 0, multiplier
    return -1, 0, 1
