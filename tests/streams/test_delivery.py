"""A message is acknowledged after all that it led to is delivered, never before, and never out of order."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from streams.delivery import Deliveries


class Acks:
    def __init__(self) -> None:
        self.given: list[int] = []

    async def __call__(self, number: int) -> None:
        self.given.append(number)


def future() -> asyncio.Future[object]:
    return asyncio.get_running_loop().create_future()


async def test_a_message_that_led_to_nothing_is_acknowledged_at_once() -> None:
    acks, deliveries = Acks(), Deliveries()
    await deliveries.add(partial(acks, 1), [])
    assert acks.given == [1]


async def test_a_later_message_waits_for_an_earlier_one() -> None:
    acks, deliveries = Acks(), Deliveries()
    slow, quick = future(), future()
    await deliveries.add(partial(acks, 1), [slow])
    await deliveries.add(partial(acks, 2), [quick])
    quick.set_result(None)
    await deliveries.settle()
    assert acks.given == []

    slow.set_result(None)
    await deliveries.settle()
    assert acks.given == [1, 2]


async def test_every_send_of_a_message_must_be_delivered() -> None:
    acks, deliveries = Acks(), Deliveries()
    sends = [future(), future(), future()]
    await deliveries.add(partial(acks, 1), sends)
    for send in sends[:2]:
        send.set_result(None)
    await deliveries.settle()
    assert acks.given == []
    sends[2].set_result(None)
    await deliveries.settle()
    assert acks.given == [1]


async def test_a_failed_send_is_raised_and_never_acknowledged() -> None:
    acks, deliveries = Acks(), Deliveries()
    failing = future()
    await deliveries.add(partial(acks, 1), [failing])
    failing.set_exception(ConnectionError("the broker said no"))
    with pytest.raises(ConnectionError):
        await deliveries.settle()
    assert acks.given == []


async def test_too_much_on_its_way_holds_the_next_message_back() -> None:
    acks, deliveries = Acks(), Deliveries(limit=2)
    sends = [future() for _ in range(3)]
    await deliveries.add(partial(acks, 0), [sends[0]])
    await deliveries.add(partial(acks, 1), [sends[1]])

    third = asyncio.create_task(deliveries.add(partial(acks, 2), [sends[2]]))
    await asyncio.sleep(0)
    assert not third.done()
    sends[0].set_result(None)
    await asyncio.wait_for(third, 5)
    assert acks.given == [0]
    assert len(deliveries) == 2


async def test_after_a_rebalance_nothing_old_is_acknowledged() -> None:
    acks, deliveries = Acks(), Deliveries()
    send = future()
    await deliveries.add(partial(acks, 1), [send])
    deliveries.forget()
    send.set_result(None)
    await deliveries.settle()
    assert acks.given == []
    assert len(deliveries) == 0
