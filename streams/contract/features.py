"""The names of the features that holders and ports have, as all components spell them."""

from __future__ import annotations

# A holder's features in nic-counters. Levels are as at the tick's end, the others are deltas in the tick.
QP_CREATED = "qp_created"
QP_RTS = "qp_rts"
QP_DESTROYED = "qp_destroyed"
QP_LIVE = "qp_live"
MR_REGISTERED = "mr_registered"
MR_DEREGISTERED = "mr_deregistered"
MR_LIVE = "mr_live"
MR_LIVE_BYTES = "mr_live_bytes"
CQ_CREATED = "cq_created"
CQ_DESTROYED = "cq_destroyed"
CQ_LIVE = "cq_live"
TX_BYTES = "tx_bytes"
RX_BYTES = "rx_bytes"
TX_PACKETS = "tx_packets"
RX_PACKETS = "rx_packets"

LEVELS = frozenset({QP_LIVE, MR_LIVE, MR_LIVE_BYTES, CQ_LIVE})
HOLDER_FEATURES = (
    QP_CREATED,
    QP_RTS,
    QP_DESTROYED,
    QP_LIVE,
    MR_REGISTERED,
    MR_DEREGISTERED,
    MR_LIVE,
    MR_LIVE_BYTES,
    CQ_CREATED,
    CQ_DESTROYED,
    CQ_LIVE,
    TX_BYTES,
    RX_BYTES,
    TX_PACKETS,
    RX_PACKETS,
)

# A port's features in job-slices: what `join` makes of the raw counters, per tick, in these units.
PORT_TX_BYTES = "tx_bytes"
PORT_RX_BYTES = "rx_bytes"
PORT_TX_PAUSE_US = "tx_pause_us"
PORT_RX_PAUSE_US = "rx_pause_us"
PORT_CNP_HANDLED = "cnp_handled"
PORT_CNP_SENT = "cnp_sent"
PORT_ECN_MARKED = "ecn_marked"
PORT_RNR = "rnr"
PORT_OUT_OF_SEQUENCE = "out_of_sequence"
PORT_DISCARDS = "discards"
PORT_LINK_DOWNED = "link_downed"
PORT_SYMBOL_ERRORS = "symbol_errors"
PORT_STATE = "state"
PORT_FEATURES = (
    PORT_TX_BYTES,
    PORT_RX_BYTES,
    PORT_TX_PAUSE_US,
    PORT_RX_PAUSE_US,
    PORT_CNP_HANDLED,
    PORT_CNP_SENT,
    PORT_ECN_MARKED,
    PORT_RNR,
    PORT_OUT_OF_SEQUENCE,
    PORT_DISCARDS,
    PORT_LINK_DOWNED,
    PORT_SYMBOL_ERRORS,
    PORT_STATE,
)
