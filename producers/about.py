"""What runs on this node: kernel, agent, NCCL libraries, and each NIC's driver and firmware."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from streams.contract.header import About, DeviceAbout


def about_node(
    *, agent_version: str, libraries: Iterable[str], settings: Mapping[str, str], sysfs: Path = Path("/sys")
) -> About:
    """As of now. Device limits are not in sysfs: they stay empty, which is not zero."""
    return About(
        agent=agent_version,
        kernel=os.uname().release,
        libnccl=sorted(libraries),
        devices=[_device(folder) for folder in device_folders(sysfs)],
        settings=dict(settings),
    )


def device_folders(sysfs: Path) -> list[Path]:
    """Each RDMA device's folder, by name."""
    root = sysfs / "class" / "infiniband"
    try:
        return sorted(root.iterdir())
    except OSError:
        return []


def _device(folder: Path) -> DeviceAbout:
    return DeviceAbout(
        device=folder.name,
        driver=_driver(folder),
        firmware=_text(folder / "fw_ver"),
        board=_text(folder / "board_id"),
    )


def _driver(folder: Path) -> str | None:
    """The bound driver; a software device has none."""
    try:
        return (folder / "device" / "driver").readlink().name
    except OSError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None
