"""How much a port can carry, and how we know."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

CapacitySource = Literal["rate", "setting", "observed"]

# A rate measured over a second is a few percent off (readings are not taken at exact instants, mlx5 caches
# counters for ~10 ms), so only a clear excess proves that a port carries more than its rate or setting says.
OBSERVED_EXCESS_PERCENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A port's capacity in one direction, and where the number comes from; both None while unknown."""

    mbps: int | None
    source: CapacitySource | None


def capacity(*, rate_mbps: int | None, setting_mbps: int | None, observed_mbps: int | None) -> Capacity:
    """The port's rate, or a lower setting, or the highest rate ever seen through it where that is higher.

    A rate of 0 (a port that is down) is no capacity. A claimed rate is the device's word: Soft-RoCE always
    says 10 Gb/s, so a setting is the only way to know a slower bottleneck behind it.
    """
    known = Capacity(mbps=None, source=None)
    if rate_mbps:
        known = Capacity(mbps=rate_mbps, source="rate")
    if setting_mbps and (known.mbps is None or setting_mbps < known.mbps):
        known = Capacity(mbps=setting_mbps, source="setting")
    if observed_mbps and (known.mbps is None or observed_mbps * 100 > known.mbps * (100 + OBSERVED_EXCESS_PERCENT)):
        return Capacity(mbps=observed_mbps, source="observed")
    return known


def setting_for(settings_mbps: Mapping[str, int], *, device: str, port: int, netdev: str | None) -> int | None:
    """The setting of a port, looked up as "mlx5_0/1", then "mlx5_0", then its netdev's name."""
    for key in (f"{device}/{port}", device, netdev):
        if key is not None and key in settings_mbps:
            return settings_mbps[key]
    return None
