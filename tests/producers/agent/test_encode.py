"""Records of a flush decode to what was sampled, whatever the shapes."""

import numpy as np

from producers.encode import MAX_GAPS, Flush, Holding, bounded_gaps, nic_counters
from producers.ports.flush import PortInfo, PortsFlush, Reset
from streams.contract import series
from streams.contract.header import Gap, Source
from streams.contract.inputs import CapacitySource, CounterReset, Holder
from streams.contract.series import MISSING
from streams.contract.topics import NIC_COUNTERS
from streams.contract.wire import Decoder, Encoder

FLUSH = Flush(cluster="c", node="n", agent_epoch="e", seq=1, first_tick=100, ticks=4, source=Source.KERNEL)


def ports(first_tick: int, values: list[list[int]], **more: object) -> PortsFlush:
    info = PortInfo(
        device="d", port=1, netdev="eth0", link_layer="Ethernet", state=None, phys_state=None,
        rate_mbps=None, capacity_mbps=None, capacity_source=None,
    )  # fmt: skip
    count = len(values)
    fields: dict[str, object] = {"resets": (), "spans": (), "gaps": ()} | more
    return PortsFlush(
        first_tick=first_tick,
        ports=(info,),
        names=tuple(f"net/{i}" for i in range(count)),
        entity=np.zeros(count, np.int32),
        name=np.arange(count, dtype=np.int32),
        values=np.array(values, np.int64),
        **fields,
    )


def unpacked(record: object) -> series.Series:
    again = Decoder(NIC_COUNTERS)(Encoder(NIC_COUNTERS)(record))
    assert again == record
    return series.unpack(record.counters, ticks=record.ticks, entities=1, names=len(record.counter_names))


def test_counters_keep_their_ticks_and_their_gaps() -> None:
    record = nic_counters(FLUSH, ports=ports(100, [[1, MISSING, 3, 4], [7, 7, 7, 7]]), holdings=[])
    rows = unpacked(record)
    assert rows.values.tolist() == [[1, MISSING, 3, 4], [7, 7, 7, 7]]
    assert record.ports[0].capacity_source is CapacitySource.UNKNOWN
    assert record.ports[0].rate_mbps is None


def test_a_sampler_that_began_later_leaves_the_first_ticks_missing() -> None:
    rows = unpacked(nic_counters(FLUSH, ports=ports(102, [[3, 4]]), holdings=[]))
    assert rows.values.tolist() == [[MISSING, MISSING, 3, 4]]


def test_a_sampler_that_covers_more_is_cut_to_the_flush() -> None:
    rows = unpacked(nic_counters(FLUSH, ports=ports(98, [[1, 2, 3, 4, 5, 6, 7]]), holdings=[]))
    assert rows.values.tolist() == [[3, 4, 5, 6]]


def test_resets_name_port_counter_and_tick() -> None:
    resets = (Reset(port=0, name="net/1", tick=2), Reset(port=0, name="gone", tick=1))
    record = nic_counters(FLUSH, ports=ports(100, [[1, 1, 1, 1], [2, 2, MISSING, 3]], resets=resets), holdings=[])
    assert record.resets == [CounterReset(port=0, counter=1, tick_offset=2)]


def test_a_holder_with_two_devices_is_one_holder_with_two_holdings() -> None:
    pod, other = Holder(pod_uid="p"), Holder(pid=7, comm="x")
    holdings = [
        Holding(holder=pod, device="d1", values={"qp_live": np.array([1, 2, 3, 4])}),
        Holding(holder=other, device="d0", values={"qp_live": np.array([5, 5, 5, 5])}),
        Holding(
            holder=pod, device="d0", values={"qp_live": np.array([6, 7, 8, 9]), "tx_bytes": np.array([0, 0, 1, 0])}
        ),
    ]
    record = nic_counters(FLUSH, ports=None, holdings=holdings)
    assert record.holders == [pod, other]
    assert record.devices == ["d0", "d1"]
    assert [half.tolist() for half in series.unpack_pairs(record.holdings)] == [[0, 1, 0], [1, 0, 0]]
    assert record.feature_names == ["qp_live", "tx_bytes"]
    rows = series.unpack(record.features, ticks=4, entities=3, names=2)
    found = {
        (entity, name): values
        for entity, name, values in zip(rows.entity.tolist(), rows.name.tolist(), rows.values.tolist(), strict=True)
    }
    assert found == {(0, 0): [1, 2, 3, 4], (1, 0): [5, 5, 5, 5], (2, 0): [6, 7, 8, 9], (2, 1): [0, 0, 1, 0]}


def test_gaps_are_told_once_each_and_their_number_is_bounded() -> None:
    gaps = [Gap(source="s", what=str(i % 100), reason="r") for i in range(1000)]
    found = bounded_gaps(gaps)
    assert len(found) == MAX_GAPS
    assert found[0] == gaps[0]
    assert found[-1].what == "37 more gaps"
