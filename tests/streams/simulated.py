"""A simulated cluster's input topics as they would lie in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

from producers.simulate.story import Story
from streams.contract.kafka import partition_of
from streams.contract.topics import INPUTS
from streams.contract.wire import Encoder
from streams.kafka_log import LogMessage

START_TICK = 17_900_000_000
ENCODERS = {topic.name: Encoder(topic) for topic in INPUTS}


def messages(seconds: int, *, partitions: int, seed: int = 1, start_tick: int = START_TICK) -> Iterator[LogMessage]:
    """Every message of so many seconds, in the order in which they are written."""
    story = Story(seed=seed, start_tick=start_tick, partitions=partitions)
    offsets: Counter[tuple[str, int]] = Counter()
    for tick in range(start_tick, start_tick + 10 * seconds):
        for item in story.next_tick():
            topic, key = item.topic.name, item.key.encode()
            partition = partition_of(key, partitions) if item.partition is None else item.partition
            yield LogMessage(
                topic=topic,
                partition=partition,
                offset=offsets[topic, partition],
                broker_time_ms=tick * 100,
                key=key,
                value=ENCODERS[topic](item.record),
                headers=dict(ENCODERS[topic].headers),
            )
            offsets[topic, partition] += 1


@cache
def demo_messages(seconds: int, partitions: int) -> tuple[LogMessage, ...]:
    """The same, made once per test run."""
    return tuple(messages(seconds, partitions=partitions))
