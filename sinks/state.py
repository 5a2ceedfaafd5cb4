"""How a sink does, in words: what it tells on pipeline-health, and one log line for each change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from streams.contract.plumbing import HealthStatus, PipelineHealth

Log = Callable[[HealthStatus, str, str], None]  # Status, the part that changed, message


@dataclass(slots=True)
class SinkState:
    """The parts of a sink that can fail on their own, and everything it counts."""

    log: Log
    counts: Counter[str] = field(default_factory=Counter)
    _troubles: dict[str, str] = field(default_factory=dict)

    def trouble(self, part: str, message: str) -> None:
        """A part is in trouble; told once, and again when the message's first words change."""
        before = self._troubles.get(part)
        self._troubles[part] = message
        if before is None or _gist(before) != _gist(message):
            self.log(HealthStatus.DOWN, part, message)

    def well(self, part: str) -> None:
        """A part works (again)."""
        if self._troubles.pop(part, None) is not None:
            self.log(HealthStatus.OK, part, "works again")

    @property
    def status(self) -> HealthStatus:
        """Down while any part is in trouble."""
        return HealthStatus.DOWN if self._troubles else HealthStatus.OK

    def report(
        self, *, cluster: str, component: str, instance: str, epoch: str, us: int, counts: Mapping[str, int]
    ) -> PipelineHealth:
        """The state as a record."""
        message = "; ".join(f"{part}: {trouble}" for part, trouble in sorted(self._troubles.items()))
        return PipelineHealth(
            cluster=cluster,
            component=component,
            instance=instance,
            epoch=epoch,
            us=us,
            status=self.status,
            message=message,
            counts=dict(counts),
        )


def _gist(message: str) -> str:
    """What of a message counts as a change: not the table or the number in its detail."""
    return message.partition(":")[0]
