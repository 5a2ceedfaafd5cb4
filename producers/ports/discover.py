"""Which RDMA ports this machine has, and which files hold their counters."""

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from producers.ports.flush import Gap
from streams.contract.counters import CounterKind, counter_spec, is_published

# The netdev statistics that say something about a port. Each file makes the driver sum all its queues, so the
# other dozen (FIFO, heartbeat, compressed …) would double the cost for nothing.
NETDEV_STATISTICS = (
    "rx_bytes",
    "tx_bytes",
    "rx_packets",
    "tx_packets",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "rx_missed_errors",
    "rx_crc_errors",
    "tx_carrier_errors",
)
MAX_GIDS = 512  # gid_attrs/ndevs has one file per GID; an empty one answers EINVAL
TICK_MS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterFile:
    """One counter: its prefixed name and the file that holds it."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPlace:
    """One port: what it is, and where to read it. `inode` changes when the device is made anew."""

    device: str
    port: int
    folder: Path
    inode: int
    netdev: str | None
    link_layer: str | None
    counters: tuple[CounterFile, ...]
    ethtool_netdevs: tuple[str, ...]
    gaps: tuple[Gap, ...]

    @property
    def key(self) -> str:
        """ "device/port", as settings and gaps name it."""
        return f"{self.device}/{self.port}"


def read_text(path: Path) -> str | None:
    """The stripped text of a sysfs file; None if it cannot be read or is empty."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def discover(sysfs: Path = Path("/sys"), *, every_row: bool = False) -> tuple[PortPlace, ...]:
    """Every port of every RDMA device, ordered by device and port number.

    Rows per queue or vector are left out, unless `every_row`.
    """
    places: list[PortPlace] = []
    for device in _entries(sysfs / "class" / "infiniband"):
        numbers = sorted(int(entry.name) for entry in _entries(device / "ports") if entry.name.isdecimal())
        for number in numbers:
            place = _place(sysfs, device, number, is_first=number == numbers[0], every_row=every_row)
            if place is not None:
                places.append(place)
    return tuple(places)


def _place(sysfs: Path, device: Path, number: int, *, is_first: bool, every_row: bool) -> PortPlace | None:
    folder = device / "ports" / str(number)
    try:
        inode = folder.stat().st_ino
    except OSError:
        return None  # unplugged while we looked
    key = f"{device.name}/{number}"
    link_layer = read_text(folder / "link_layer")
    netdev = find_netdev(device, number)
    # An InfiniBand port's netdev is IPoIB: its statistics are one user of the port, not the port.
    carrier = netdev if link_layer != "InfiniBand" else None
    found, gaps = _counter_files(device, folder, key, is_first=is_first, every_row=every_row)
    if carrier is not None:
        files, netdev_gaps = _netdev_files(sysfs / "class" / "net" / carrier, key)
        found += files
        gaps += netdev_gaps
    elif link_layer == "Ethernet":
        gaps.append(Gap(source=key, what="net/*", reason="no netdev of this port in our network namespace"))
    if (device / "parent").exists():
        gaps.append(Gap(source=key, what="capacity", reason="a software device claims a nominal rate"))
    return PortPlace(
        device=device.name,
        port=number,
        folder=folder,
        inode=inode,
        netdev=netdev,
        link_layer=link_layer,
        counters=tuple(found),
        ethtool_netdevs=_physical_netdevs(sysfs, carrier),
        gaps=tuple(gaps),
    )


def _counter_files(
    device: Path, folder: Path, key: str, *, is_first: bool, every_row: bool
) -> tuple[list[CounterFile], list[Gap]]:
    """The port's own folders, and for a device's first port the device-wide ones."""
    by_name: dict[str, Path] = {}
    folders = [("ib", folder / "counters"), ("ib", folder / "counters_ext"), ("hw", folder / "hw_counters")]
    if is_first:
        folders.append(("hw", device / "hw_counters"))
    for prefix, place in folders:
        for entry in _entries(place):
            by_name.setdefault(f"{prefix}/{entry.name}", entry)
    gaps = [
        Gap(source=key, what=f"{prefix}/*", reason=f"no {place.name} folder")
        for prefix, place in (folders[0], folders[2])
        if not place.is_dir()
    ]
    gaps += _lifespan_gap(by_name.get("hw/lifespan"), key)
    counters = {name: path for name, path in by_name.items() if counter_spec(name).kind is not CounterKind.SETTING}
    kept = [CounterFile(name=name, path=path) for name, path in counters.items() if every_row or is_published(name)]
    if len(kept) < len(counters):
        gaps.append(unpublished_gap(key, "hw/*", len(counters) - len(kept)))
    return kept, gaps


def _lifespan_gap(lifespan: Path | None, key: str) -> list[Gap]:
    text = read_text(lifespan) if lifespan is not None else None
    if text is None or not text.isdecimal() or int(text) < TICK_MS:
        return []
    return [Gap(source=key, what="hw/*", reason=f"the driver refreshes these only every {text} ms (lifespan)")]


def unpublished_gap(source: str, what: str, count: int) -> Gap:
    """The gap that says how many rows per queue or vector were left out."""
    return Gap(source=source, what=what, reason=f"{count} rows per queue, channel or vector are not published")


def _netdev_files(netdev: Path, key: str) -> tuple[list[CounterFile], list[Gap]]:
    if not netdev.is_dir():
        return [], [Gap(source=key, what="net/*", reason=f"netdev {netdev.name} is not in our network namespace")]
    statistics = netdev / "statistics"
    present = {entry.name for entry in _entries(statistics)}
    files = [CounterFile(name=f"net/{n}", path=statistics / n) for n in NETDEV_STATISTICS if n in present]
    if (netdev / "carrier_changes").exists():
        files.append(CounterFile(name="net/carrier_changes", path=netdev / "carrier_changes"))
    return files, []


def _physical_netdevs(sysfs: Path, netdev: str | None) -> tuple[str, ...]:
    """The netdevs whose ethtool statistics together are the port's: the members of a bond, else itself."""
    if netdev is None:
        return ()
    members = read_text(sysfs / "class" / "net" / netdev / "bonding" / "slaves")
    return tuple(sorted(members.split())) if members else (netdev,)


def find_netdev(device: Path, port: int) -> str | None:
    """The netdev of a port: by its GIDs, else by the PCI function's netdevs, else by Soft-RoCE's parent."""
    for index, entry in enumerate(_entries(device / "ports" / str(port) / "gid_attrs" / "ndevs")):
        name = read_text(entry) if index < MAX_GIDS else None
        if name is not None:
            return name
    siblings = _entries(device / "device" / "net")
    if len(siblings) == 1:
        return siblings[0].name
    for sibling in siblings:
        if read_text(sibling / "dev_port") == str(port - 1):
            return sibling.name
    return read_text(device / "parent")


def _entries(folder: Path) -> list[Path]:
    """The folder's entries in natural order; empty if it is absent or vanishes."""
    try:
        return sorted(folder.iterdir(), key=_natural)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.EACCES, errno.EINVAL):
            raise
        return []


def _natural(path: Path) -> tuple[str, int, str]:
    digits = re.search(r"\d+$", path.name)
    return (path.name.removesuffix(digits[0]), int(digits[0]), "") if digits else (path.name, -1, "")


def device_versions(sysfs: Path = Path("/sys")) -> Iterable[tuple[str, str]]:
    """Pairs (device, firmware version) of the RDMA devices that state one."""
    for device in _entries(sysfs / "class" / "infiniband"):
        version = read_text(device / "fw_ver")
        if version is not None:
            yield device.name, version
