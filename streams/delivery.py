"""Acknowledges a message only after everything that it led to is delivered; holds back when too much is on its way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

# Enough to fill the producer's batches, few enough that a kill repeats little. (73 of 9,000 were repeated at 300/s.)
MAX_IN_FLIGHT = 512

Ack = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    ack: Ack
    sent: Sequence[asyncio.Future[object]]


class Deliveries:
    """The messages whose results are not yet all delivered, oldest first."""

    def __init__(self, *, limit: int = MAX_IN_FLIGHT) -> None:
        self._limit = limit
        self._taken: deque[_Taken] = deque()

    def __len__(self) -> int:
        return len(self._taken)

    async def add(self, ack: Ack, sent: Sequence[asyncio.Future[object]]) -> None:
        """Note a message and its sends; waits while the limit is reached. Raises what a send failed with."""
        self._taken.append(_Taken(ack=ack, sent=sent))
        await self.settle()
        while len(self._taken) > self._limit:
            await asyncio.gather(*self._taken[0].sent)
            await self.settle()

    async def settle(self) -> None:
        """Acknowledge what is delivered, in order; raises what a send failed with."""
        while self._taken and all(future.done() for future in self._taken[0].sent):
            taken = self._taken.popleft()
            for future in taken.sent:
                future.result()
            await taken.ack()

    def forget(self) -> None:
        """Drop what is on its way: after a rebalance those messages are read again by whoever owns them."""
        self._taken.clear()
