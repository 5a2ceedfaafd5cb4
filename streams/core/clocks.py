"""A topic's watcher clock in one partition, believed or not by the order of that topic-partition's log alone."""

from __future__ import annotations

import msgspec

from streams.contract.header import WatcherClock


class Clock(msgspec.Struct, kw_only=True):
    """The last clock that was believed, and what the log says beside it.

    One clock far ahead would make every node silent and close seconds that have not been yet. So it is doubted: it
    must be followed by a second one of the same watcher that goes on from it, with no node's record of the old time
    between them. After an outage that is so; where one clock was wrong, or nodes go on as before, it is not.
    """

    tick: int = -1
    newest: int = -1  # Newest tick of a node's record, unless that was far ahead itself
    doubted: WatcherClock | None = None

    def hear(self, tick: int, *, ahead_ticks: int) -> None:
        """A node's record ends at this tick: whoever goes on in the old time speaks against a doubted clock."""
        now = max(self.tick, self.newest)
        if now < 0 or tick <= now + ahead_ticks:
            self.newest = max(self.newest, tick)
            self.doubted = None

    def believe(self, told: WatcherClock, *, ahead_ticks: int) -> bool:
        """Take the next clock of the log; False where it is doubted."""
        now, doubted = max(self.tick, self.newest), self.doubted
        self.doubted = None
        if 0 <= now < told.tick - ahead_ticks and not (
            doubted is not None
            and doubted.watcher_epoch == told.watcher_epoch
            and 0 < told.tick - doubted.tick <= ahead_ticks
        ):
            self.doubted = told
            return False
        self.tick = max(self.tick, told.tick)
        return True
