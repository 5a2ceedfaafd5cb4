"""An outage is two log lines, not thousands."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from streams.complaints import WELL_AFTER_S, Complaints

CLIENT = "a-client"


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    made = Complaints(CLIENT)
    made.attach()
    yield made
    logging.getLogger(CLIENT).handlers = []
    logging.getLogger(CLIENT).propagate = True


def complain(text: str, at_s: float, *, logger: str = CLIENT, level: int = logging.WARNING) -> None:
    record = logging.LogRecord(logger, level, "", 0, text, None, None)
    record.created = at_s
    logging.getLogger(logger).handle(record)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a person would read: the client's own lines go nowhere (pytest alone still sees them)."""
    return [record.message for record in caplog.records if record.name == "streams.complaints"]


def test_the_first_complaint_is_told_and_the_next_thousand_are_not(
    complaints: Complaints, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for number in range(1000):
            complain(f"no connection {number}", 100 + number / 30, logger=f"{CLIENT}.consumer")
        complaints.look(100 + 1000 / 30)

    assert told(caplog) == ["trouble with Kafka, more of it kept quiet: no connection 0"]
    assert complaints.away


def test_when_they_cease_it_says_so_once_and_the_next_outage_is_told_again(
    complaints: Complaints, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        complain("gone", 100)
        complain("still gone", 101)
        complaints.look(101 + WELL_AFTER_S)
        complaints.look(101 + WELL_AFTER_S + 0.1)
        complaints.look(200)
        complain("gone again", 300)

    assert told(caplog) == [
        "trouble with Kafka, more of it kept quiet: gone",
        "Kafka works again (1 complaints kept quiet)",
        "trouble with Kafka, more of it kept quiet: gone again",
    ]


def test_what_is_no_complaint_is_not_told(complaints: Complaints, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger(CLIENT).info("all is well")
    assert logging.getLogger(CLIENT).propagate is False
    assert told(caplog) == []
    assert not complaints.away
