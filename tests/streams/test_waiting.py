"""A worker waits for brokers and topics with one line per change of state, and refuses what waiting cannot mend."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from fabric_sentinel.broker import EmbeddedBroker
from streams.app import LONGEST_WAIT_S, WrongTopicsError, wait_for_topics
from streams.contract.kafka import KafkaConnection
from streams.contract.topics import ALL

WANTED = {topic.name: topic.partitions(2) for topic in ALL}


class EnoughError(Exception):
    pass


class Sleeper:
    """Notes how long it was to sleep, and at its last turn does something else."""

    def __init__(self, turns: int, then: Callable[[], object]) -> None:
        self.slept: list[float] = []
        self._turns, self._then = turns, then

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == self._turns:
            self._then()


def stop() -> None:
    raise EnoughError


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the worker said; clients of other tests may still be saying that their broker is gone."""
    return [record.message for record in caplog.records if record.name.startswith("streams")]


def test_while_no_broker_answers_it_waits_longer_each_time_and_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.app.ASK_TIMEOUT_S", 0.05)
    sleeper = Sleeper(7, stop)
    with caplog.at_level(logging.INFO), pytest.raises(EnoughError):
        wait_for_topics(KafkaConnection(bootstrap="127.0.0.1:1"), 2, sleep=sleeper)

    assert sleeper.slept == [0.5, 1.0, 2.0, 4.0, 8.0, LONGEST_WAIT_S, LONGEST_WAIT_S]
    assert told(caplog) == ["waiting: no broker answers at 127.0.0.1:1"]


def test_it_names_missing_topics_and_goes_on_when_they_are_there(
    new_embedded_broker: Callable[..., EmbeddedBroker], caplog: pytest.LogCaptureFixture
) -> None:
    broker = new_embedded_broker({name: count for name, count in WANTED.items() if name != "episodes"})
    sleeper = Sleeper(2, lambda: broker.create({"episodes": 1}))
    with caplog.at_level(logging.INFO):
        wait_for_topics(KafkaConnection(bootstrap=broker.bootstrap), 2, sleep=sleeper)

    assert told(caplog) == [
        "waiting: no topics episodes: run `fabric-sentinel topics apply`",
        "brokers and topics are there",
    ]


def test_where_all_is_well_it_says_nothing(
    new_embedded_broker: Callable[..., EmbeddedBroker], caplog: pytest.LogCaptureFixture
) -> None:
    broker = new_embedded_broker(WANTED)
    with caplog.at_level(logging.INFO):
        wait_for_topics(KafkaConnection(bootstrap=broker.bootstrap), 2, sleep=Sleeper(1, stop))
    assert told(caplog) == []


def test_another_partition_count_is_refused_at_once(new_embedded_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = new_embedded_broker(WANTED)
    with pytest.raises(WrongTopicsError, match="nic-counters has 2 partitions, not 5"):
        wait_for_topics(KafkaConnection(bootstrap=broker.bootstrap), 5, sleep=Sleeper(1, stop))
