"""Every RDMA port is found, with its netdev and its files, and what is not there is a named gap."""

from pathlib import Path

from producers.ports.discover import PortPlace, device_versions, discover, find_netdev
from producers.ports.flush import Gap
from tests.paths import shared
from tests.producers.ports.trees import make_port, write


def found(sysfs: Path) -> dict[str, PortPlace]:
    return {place.key: place for place in discover(sysfs)}


def names(place: PortPlace) -> set[str]:
    return {counter.name for counter in place.counters}


def test_a_machine_without_rdma_has_no_ports(tmp_path: Path) -> None:
    assert discover(tmp_path) == ()


def test_ports_come_in_the_order_of_their_numbers_not_of_their_text() -> None:
    places = discover(shared("corpus", "sysfs", "10_cx8_roce_12_ports"))
    assert [place.port for place in places] == list(range(1, 13))


def test_every_real_device_of_the_corpus_is_found_with_its_link_layer() -> None:
    layers = {
        place.key: place.link_layer
        for tree in shared("corpus", "sysfs").iterdir()
        if tree.is_dir()
        for place in discover(tree)
    }
    assert layers["hfi1_0/1"] == "InfiniBand"
    assert layers["irdma0/1"] == "Ethernet"
    assert layers["mlx5_bond_0/1"] == "Ethernet"
    assert None not in layers.values()


def test_names_are_prefixed_by_their_source_and_the_lifespan_setting_is_no_counter() -> None:
    place = found(shared("corpus", "sysfs", "08_irdma_plus_mlx5"))["irdma0/1"]
    assert {"hw/RNR sent", "hw/Nak Sequence Error", "hw/cnpSent"} <= names(place)
    assert "hw/lifespan" not in names(place)
    assert Gap(source="irdma0/1", what="ib/*", reason="no counters folder") in place.gaps


def test_counters_of_the_old_extended_folder_are_read_too() -> None:
    place = found(shared("corpus", "sysfs", "03_mlx4_counters_ext"))["mlx4_0/1"]
    assert {"ib/port_xmit_data", "ib/port_xmit_data_64", "ib/port_unicast_rcv_packets"} <= names(place)


def test_device_wide_counters_belong_to_the_first_port_and_rows_per_vector_are_counted_out() -> None:
    place = found(shared("corpus", "sysfs", "01_hfi1_omnipath"))["hfi1_0/1"]
    assert "hw/TxLinkdownErr" in names(place)
    assert "hw/SwLinkUp,32" not in names(place)
    assert (
        Gap(source="hfi1_0/1", what="hw/*", reason="1 rows per queue, channel or vector are not published")
        in place.gaps
    )


def test_a_port_without_any_counter_folder_is_still_a_port() -> None:
    place = found(shared("corpus", "sysfs", "13_pod_shared_netns_no_counters"))["mlx5_0/1"]
    assert place.counters == ()
    assert {gap.reason for gap in place.gaps} == {"no counters folder", "no hw_counters folder"}


def test_the_netdev_comes_from_the_first_gid_that_names_one(tmp_path: Path) -> None:
    folder = make_port(tmp_path, netdev="ens1", statistics={"rx_bytes": 1, "tx_compressed": 2})
    write(folder / "gid_attrs" / "ndevs" / "10", "vlan\n")
    write(tmp_path / "class" / "net" / "ens1" / "carrier_changes", "3\n")
    place = found(tmp_path)["mlx5_0/1"]
    assert place.netdev == "ens1"
    assert names(place) == {"net/rx_bytes", "net/carrier_changes"}
    assert place.ethtool_netdevs == ("ens1",)


def test_of_several_netdevs_on_one_function_the_one_with_the_ports_number_is_taken(tmp_path: Path) -> None:
    for port, netdev in ((1, "p0"), (2, "p1")):
        make_port(tmp_path, port=port)
        write(tmp_path / "class/infiniband/mlx5_0/device/net" / netdev / "dev_port", f"{port - 1}\n")
    device = tmp_path / "class" / "infiniband" / "mlx5_0"
    assert (find_netdev(device, 1), find_netdev(device, 2)) == ("p0", "p1")


def test_soft_roce_without_gids_names_its_parent_and_its_rate_is_called_nominal(tmp_path: Path) -> None:
    make_port(tmp_path, device="rxe0")
    write(tmp_path / "class" / "infiniband" / "rxe0" / "parent", "v0\n")
    place = found(tmp_path)["rxe0/1"]
    assert place.netdev == "v0"
    assert Gap(source="rxe0/1", what="capacity", reason="a software device claims a nominal rate") in place.gaps


def test_a_bond_is_read_through_its_members(tmp_path: Path) -> None:
    make_port(tmp_path, device="mlx5_bond_0", netdev="bond0", statistics={"rx_bytes": 1})
    write(tmp_path / "class" / "net" / "bond0" / "bonding" / "slaves", "ens2 ens1\n")
    assert found(tmp_path)["mlx5_bond_0/1"].ethtool_netdevs == ("ens1", "ens2")


def test_a_netdev_in_a_pods_namespace_is_a_gap(tmp_path: Path) -> None:
    folder = make_port(tmp_path)
    write(folder / "gid_attrs" / "ndevs" / "0", "net1\n")
    assert (
        Gap(source="mlx5_0/1", what="net/*", reason="netdev net1 is not in our network namespace")
        in found(tmp_path)["mlx5_0/1"].gaps
    )


def test_an_infiniband_ports_ipoib_statistics_are_not_taken_for_the_port(tmp_path: Path) -> None:
    make_port(tmp_path, netdev="ib0", statistics={"rx_bytes": 1}, link_layer="InfiniBand")
    place = found(tmp_path)["mlx5_0/1"]
    assert (place.netdev, names(place), place.ethtool_netdevs) == ("ib0", set(), ())


def test_counters_that_a_driver_refreshes_slower_than_a_tick_are_a_gap(tmp_path: Path) -> None:
    make_port(tmp_path, hw_counters={"lifespan": 1000, "np_cnp_sent": 1})
    reasons = {gap.reason for gap in found(tmp_path)["mlx5_0/1"].gaps}
    assert "the driver refreshes these only every 1000 ms (lifespan)" in reasons


def test_firmware_versions_are_listed_where_stated() -> None:
    assert dict(device_versions(shared("corpus", "sysfs", "08_irdma_plus_mlx5"))) == {
        "irdma0": "1.71",
        "mlx5_0": "20.31.1014",
    }
