"""What one topic says of one node, in log order: records, or silence; only that topic's own log decides."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

import msgspec

from streams.contract.inputs import NcclThroughput, NicCounters

RETIRED_EPOCHS = 8  # A node that restarts more often than this within its backlog is broken in another way

Rec = TypeVar("Rec", NicCounters, NcclThroughput)


class View(msgspec.Struct, Generic[Rec], kw_only=True):
    """One node's records of one topic that have not been joined yet, and how far the topic has spoken."""

    epoch: str = ""
    retired: list[str] = []
    through: int = -1  # Last tick that a record told, or that was given up
    waiting: list[Rec] = []

    def admit(self, record: Rec, *, given_up_through: int, counts: Counter[str]) -> bool:
        """Take the next record of the log unless it is of a retired epoch or about ticks that were given up."""
        if record.agent_epoch != self.epoch:
            if record.agent_epoch in self.retired:
                counts["retired_epoch"] += 1
                return False
            if self.epoch:
                self.retired = [*self.retired[1 - RETIRED_EPOCHS :], self.epoch]
            self.epoch = record.agent_epoch
        self.through = max(self.through, given_up_through)
        if record.first_tick <= self.through:
            counts["late"] += 1
            return False
        self.through = record.first_tick + record.ticks - 1
        self.waiting.append(record)
        return True


def last_tick(record: NicCounters | NcclThroughput) -> int:
    """The last tick that a record tells of."""
    return record.first_tick + record.ticks - 1
