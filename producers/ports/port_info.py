"""A port's own words about itself: state, rate, and so its capacity."""

from collections.abc import Mapping
from pathlib import Path

from producers.ports.capacity import capacity, setting_for
from producers.ports.discover import PortPlace, read_text
from producers.ports.fields import parse_rate_bps, parse_state
from producers.ports.flush import PortInfo


def port_info(place: PortPlace, *, settings_mbps: Mapping[str, int], observed_mbps: int | None) -> PortInfo:
    """Read the port's state and rate now, and decide its capacity."""
    rate_bps = parse_rate_bps(read_text(place.folder / "rate") or "")
    rate_mbps = None if rate_bps is None else rate_bps // 10**6
    setting_mbps = setting_for(settings_mbps, device=place.device, port=place.port, netdev=place.netdev)
    found = capacity(rate_mbps=rate_mbps, setting_mbps=setting_mbps, observed_mbps=observed_mbps)
    return PortInfo(
        device=place.device,
        port=place.port,
        netdev=place.netdev,
        link_layer=place.link_layer,
        state=_state_name(place.folder / "state"),
        phys_state=_state_name(place.folder / "phys_state"),
        rate_mbps=rate_mbps,
        capacity_mbps=found.mbps,
        capacity_source=found.source,
    )


def _state_name(path: Path) -> str | None:
    state = parse_state(read_text(path) or "")
    return None if state is None else state.name
