"""A port's capacity says where it comes from."""

import pytest

from producers.ports.capacity import Capacity, capacity, setting_for


@pytest.mark.parametrize(
    ("rate", "setting", "observed", "expected"),
    [
        (400_000, None, None, (400_000, "rate")),
        (400_000, 100_000, None, (100_000, "setting")),
        (400_000, 800_000, None, (400_000, "rate")),
        (10_000, None, 23_000, (23_000, "observed")),
        (10_000, None, 10_400, (10_000, "rate")),
        (10_000, 100, 90, (100, "setting")),
        (10_000, 100, 900, (900, "observed")),
        (None, 100, None, (100, "setting")),
        (None, None, 7, (7, "observed")),
        (0, None, None, (None, None)),
        (None, None, None, (None, None)),
    ],
)
def test_the_source_is_the_rate_a_lower_setting_or_a_clear_excess_seen(
    rate: int | None, setting: int | None, observed: int | None, expected: tuple[int | None, str | None]
) -> None:
    found = capacity(rate_mbps=rate, setting_mbps=setting, observed_mbps=observed)
    assert found == Capacity(mbps=expected[0], source=expected[1])  # type: ignore[arg-type]


def test_a_setting_for_the_port_beats_one_for_the_device_and_one_for_the_netdev() -> None:
    settings = {"mlx5_0/2": 1, "mlx5_0": 2, "ens1": 3}
    assert setting_for(settings, device="mlx5_0", port=2, netdev="ens1") == 1
    assert setting_for(settings, device="mlx5_0", port=1, netdev="ens1") == 2
    assert setting_for(settings, device="mlx5_1", port=1, netdev="ens1") == 3
    assert setting_for(settings, device="mlx5_1", port=1, netdev=None) is None
