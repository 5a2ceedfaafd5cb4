"""The counter catalogue agrees with the kernel's widths and with every name of the real corpora."""

import pytest

from streams.contract.counters import AtMaximum, CounterKind, counter_spec, is_published
from tests.paths import shared

SATURATING_BITS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
    "port_xmit_wait": 32,
    "port_xmit_data": 32,
    "port_rcv_data": 32,
    "port_xmit_packets": 32,
    "port_rcv_packets": 32,
}


@pytest.mark.parametrize(("name", "bits"), SATURATING_BITS.items())
def test_pma_counters_stay_at_the_maximum_of_their_kernel_width(name: str, bits: int) -> None:
    spec = counter_spec(f"ib/{name}")
    assert (spec.width_bits, spec.at_maximum, spec.maximum) == (bits, AtMaximum.SATURATES, 2**bits - 1)


@pytest.mark.parametrize("name", ["rx_write_requests", "out_of_buffer", "roce_slow_restart_trans", "packet_seq_err"])
def test_mlx5_queue_counters_wrap_at_32_bits(name: str) -> None:
    spec = counter_spec(f"hw/{name}")
    assert (spec.width_bits, spec.at_maximum, spec.kind) == (32, AtMaximum.WRAPS, CounterKind.COUNTER)


@pytest.mark.parametrize("name", ["np_cnp_sent", "rp_cnp_handled", "rx_icrc_encapsulated", "rdma_tx_bytes"])
def test_congestion_and_optional_counters_are_64_bits_wide(name: str) -> None:
    assert counter_spec(f"hw/{name}").width_bits == 64


@pytest.mark.parametrize(
    ("name", "unit", "multiplier"),
    [
        ("ib/port_xmit_data", "bytes", 4),
        ("ib/port_rcv_data_64", "bytes", 4),
        ("ib/unicast_xmit_packets", "packets", 1),
        ("net/rx_bytes", "bytes", 1),
        ("net/carrier_changes", "events", 1),
        ("eth/rx_prio3_pause_duration", "us", 1),
        ("eth/rx_prio3_pause", "frames", 1),
        ("eth/tx_priority_0_xoff.nic", "frames", 1),
        ("eth/rx_vport_rdma_unicast_bytes", "bytes", 1),
        ("eth/tx_packets_phy", "packets", 1),
        ("hw/ip4InOctets", "bytes", 1),
    ],
)
def test_units_and_multipliers_are_stated(name: str, unit: str, multiplier: int) -> None:
    spec = counter_spec(name)
    assert (spec.unit, spec.multiplier, spec.known) == (unit, multiplier, True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hw/lifespan", CounterKind.SETTING),
        ("hw/active_qps", CounterKind.GAUGE),
        ("eth/outbound_pci_stalled_rd", CounterKind.GAUGE),
        ("eth/outbound_pci_stalled_rd_events", CounterKind.COUNTER),
        ("port/state", CounterKind.GAUGE),
        ("hw/link_downed", CounterKind.COUNTER),
    ],
)
def test_settings_and_gauges_are_told_from_counters(name: str, kind: CounterKind) -> None:
    assert counter_spec(name).kind is kind


def test_an_unlisted_name_is_a_64_bit_counter_marked_as_a_guess() -> None:
    spec = counter_spec("hw/Nak Sequence Error")
    assert (spec.kind, spec.width_bits, spec.known) == (CounterKind.COUNTER, 64, False)


@pytest.mark.parametrize(
    "name",
    [
        "eth/rx7_packets",
        "eth/tx0_dropped",
        "eth/ch0_events",
        "eth/[0]: rx_bytes",
        "eth/rxq0: rx_drops_no_frags",
        "eth/rx_queue_3_bytes",
        "eth/tx-1.packets",
        "hw/SwLinkUp,32",
        "hw/RcvHdrOvr159",
    ],
)
def test_rows_per_queue_or_vector_are_not_published(name: str) -> None:
    assert not is_published(name)


@pytest.mark.parametrize(
    "name",
    [
        "eth/rx_packets",
        "eth/rx_packets_phy",
        "eth/rx_prio3_pause",
        "eth/rx_err_lane_0_phy",
        "eth/tx_bytes",
        "eth/rx_pfc_ena_frames_pri3",
        "hw/RcResend",
        "hw/Rx atomics",
        "ib/port_xmit_data",
    ],
)
def test_rows_of_the_whole_port_are_published(name: str) -> None:
    assert is_published(name)


def test_every_pma_name_of_the_real_devices_is_known() -> None:
    names = {f"ib/{path.name}" for path in shared("corpus", "sysfs").glob("*/class/infiniband/*/ports/*/counters/*")}
    assert len(names) > 20
    assert {name for name in names if not counter_spec(name).known} == set()
