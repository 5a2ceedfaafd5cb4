"""Well-formed records that cannot be true are refused where they are read."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from streams.contract.calls import Column, pack_rows, unpack_rows
from streams.contract.errors import InvalidRecordError
from streams.contract.header import WatcherClock
from streams.contract.inputs import CommEvent, Communicator, CounterReset
from streams.contract.rosters import roster_bytes
from streams.contract.series import PackedSeries, pack_pairs
from streams.contract.slices import Progress
from streams.contract.topics import BY_NAME
from streams.contract.validate import MAX_TICK, MAX_TICKS, check
from streams.contract.wire import Decoder, Encoder
from tests.contract.examples import EXAMPLES, NCCL, NIC, PODS, ROSTER, SLICE

replace = msgspec.structs.replace


@pytest.mark.parametrize("key", EXAMPLES, ids=".".join)
def test_honest_records_pass(key: tuple[str, str]) -> None:
    check(EXAMPLES[key])


def with_row(column: Column, value: int) -> Any:
    rows = unpack_rows(NCCL.rows, communicators=1, ticks=5)
    rows[0, column] = value
    return replace(NCCL, rows=pack_rows(rows))


NO_NUMBERS = replace(NIC, counters=PackedSeries(), features=PackedSeries(), resets=[])
ABSURD = {
    "a tick count of 2^40": replace(NO_NUMBERS, ticks=2**40),
    "a negative tick count": replace(NO_NUMBERS, ticks=-1),
    "one tick more than a minute": replace(NO_NUMBERS, ticks=MAX_TICKS + 1),
    "no tick on a node's record": replace(NO_NUMBERS, ticks=0),
    "a first tick in microseconds": replace(NIC, first_tick=1_790_000_000_000_000),
    "a negative first tick": replace(NIC, first_tick=-5),
    "a negative seq": replace(NIC, seq=-1),
    "a port number of a switch": replace(NIC, ports=[replace(NIC.ports[0], port=4000), NIC.ports[1]]),
    "counters of a port not listed": replace(NIC, ports=NIC.ports[:1]),
    "counters without a name": replace(NIC, counter_names=NIC.counter_names[:1]),
    "ids of half an integer": replace(NIC, counters=replace(NIC.counters, moving_ids=b"\0\0")),
    "fewer values than ids": replace(NIC, counters=replace(NIC.counters, steady_values=b"")),
    "values for other ticks": replace(NIC, ticks=4),
    "a reset of a counter not listed": replace(NIC, resets=[CounterReset(port=0, counter=3, tick_offset=0)]),
    "a reset at a negative index": replace(NIC, resets=[CounterReset(port=-1, counter=0, tick_offset=0)]),
    "a reset outside the record": replace(NIC, resets=[CounterReset(port=0, counter=0, tick_offset=5)]),
    "a holding of nobody": replace(NIC, holdings=pack_pairs([1], [0])),
    "a holding on no device": replace(NIC, holdings=pack_pairs([0], [1])),
    "features of no holding": replace(NIC, holdings=b""),
    "neither node nor clock": replace(NIC, node=""),
    "node and clock": replace(NIC, watcher_clock=WatcherClock(watcher_epoch="w", seq=1, tick=5)),
    "a clock in the year 9999": replace(
        EXAMPLES["nic-counters", "clock"], watcher_clock=WatcherClock(watcher_epoch="w", seq=1, tick=MAX_TICK + 1)
    ),
    "a communicator of no process": replace(NCCL, communicators=[Communicator(process=1, comm="x")]),
    "a row of no communicator": replace(NCCL, communicators=[], events=[]),
    "a row at a negative communicator": with_row(Column.COMMUNICATOR, -1),
    "a row outside the record": with_row(Column.TICK_OFFSET, 5),
    "negative calls": with_row(Column.CALLS, -3),
    "a call years away": with_row(Column.FIRST_US, 2**60),
    "rows cut short": replace(NCCL, rows=NCCL.rows[:-8]),
    "an event of no communicator": replace(NCCL, events=[CommEvent(communicator=7, us=0)]),
    "a pod that ends before it begins": replace(PODS, pods=[replace(PODS.pods[0], valid_to_tick=5)]),
    "minus one GPU": replace(PODS, pods=[replace(PODS.pods[0], gpus=-1)]),
    "progress of a negative partition": replace(SLICE, progress=Progress(input_partition=-1, through_tick=5)),
    "neither job nor progress": replace(SLICE, job=""),
    "suspects' features without suspects": replace(SLICE, roster=roster_bytes(replace(ROSTER, suspects=[]))),
    "ports' features without ports": replace(SLICE, roster=roster_bytes(replace(ROSTER, ports=[]))),
    "calls without communicators": replace(SLICE, roster=roster_bytes(replace(ROSTER, communicators=[]))),
    "features without names": replace(SLICE, roster=roster_bytes(replace(ROSTER, feature_names=[]))),
    "numbers without a roster": replace(SLICE, roster=b""),
    "a roster cut short": replace(SLICE, roster=SLICE.roster[:-1]),
    "an episode before time": replace(EXAMPLES["episodes", "confirmed"], onset_tick=-1),
}
TOPIC_OF = {type(record): topic for (topic, _), record in EXAMPLES.items()}


@pytest.mark.parametrize("what", ABSURD)
def test_absurd_records_are_refused_by_the_decoder(what: str) -> None:
    topic = BY_NAME[TOPIC_OF[type(ABSURD[what])]]
    value = Encoder(topic)(ABSURD[what])
    with pytest.raises(InvalidRecordError):
        Decoder(topic)(value)


def test_what_a_tenant_can_forge_does_not_cost_a_node_its_record() -> None:
    for column in (Column.COUNT, Column.BYTES, Column.DTYPE, Column.OP):
        for value in (-(2**63), 2**63 - 1):
            check(with_row(column, value))


def test_what_hardware_says_does_not_cost_a_node_its_record() -> None:
    odd = np.full((1, 5), 2**63 - 1, np.int64)
    check(replace(NIC, counters=PackedSeries(moving_ids=pack_pairs([0], [0]), moving_values=odd.tobytes())))
