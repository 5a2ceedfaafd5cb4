"""Generated sysfs trees with RDMA ports, for tests and benchmarks."""

from collections.abc import Mapping
from pathlib import Path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def make_port(
    sysfs: Path,
    device: str = "mlx5_0",
    port: int = 1,
    *,
    counters: Mapping[str, int | str] | None = None,
    hw_counters: Mapping[str, int | str] | None = None,
    netdev: str | None = None,
    statistics: Mapping[str, int | str] | None = None,
    rate: str = "400 Gb/sec (4X NDR)",
    state: str = "4: ACTIVE",
    phys_state: str = "5: LinkUp",
    link_layer: str = "Ethernet",
) -> Path:
    """Make one port below `sysfs/class/infiniband` and give its folder back."""
    folder = sysfs / "class" / "infiniband" / device / "ports" / str(port)
    for name, text in (("rate", rate), ("state", state), ("phys_state", phys_state), ("link_layer", link_layer)):
        write(folder / name, f"{text}\n")
    for group, values in (("counters", counters), ("hw_counters", hw_counters)):
        for name, value in (values or {}).items():
            write(folder / group / name, f"{value}\n")
    if netdev is not None:
        write(folder / "gid_attrs" / "ndevs" / "0", f"{netdev}\n")
        for name, value in (statistics or {}).items():
            write(sysfs / "class" / "net" / netdev / "statistics" / name, f"{value}\n")
    return folder
