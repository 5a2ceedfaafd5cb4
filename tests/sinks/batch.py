"""Batches as the consumer loop would cut them."""

from collections.abc import Sequence

import msgspec

from sinks.batches import Batch
from streams.contract.topics import Topic


def batch(topic: Topic, records: Sequence[msgspec.Struct], *, first: int = 0, partition: int = 0) -> Batch:
    last = first + len(records) - 1
    return Batch(
        topic=topic,
        partition=partition,
        first=first,
        last=last,
        offsets=range(first, last + 1),
        records=records,
        letters=(),
    )
