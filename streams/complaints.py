"""Turns a Kafka client's flood of complaints into one log line per change of state."""

from __future__ import annotations

import logging

# aiokafka complains some thirty times a second while a broker is away; five seconds of silence mean that it is back.
WELL_AFTER_S = 5.0

log = logging.getLogger(__name__)


class Complaints(logging.Handler):
    """Takes a client's log: tells the first complaint, keeps the rest quiet, and says when they have ceased."""

    def __init__(self, client: str = "aiokafka") -> None:
        super().__init__(logging.WARNING)
        self._client = client
        self._newest_s: float | None = None
        self._kept_quiet = 0

    @property
    def away(self) -> bool:
        """True from the first complaint until they have ceased."""
        return self._newest_s is not None

    def attach(self) -> None:
        """Take over the client's log from whoever shows it now."""
        logger = logging.getLogger(self._client)
        logger.handlers, logger.propagate = [self], False
        logger.setLevel(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """One complaint."""
        if self._newest_s is None:
            log.warning("trouble with Kafka, more of it kept quiet: %s", record.getMessage())
            self._kept_quiet = 0
        else:
            self._kept_quiet += 1
        self._newest_s = record.created

    def look(self, now_s: float) -> None:
        """Say so if the complaints have ceased; call this now and then with the wall clock."""
        if self._newest_s is not None and now_s - self._newest_s > WELL_AFTER_S:
            log.info("Kafka works again (%d complaints kept quiet)", self._kept_quiet)
            self._newest_s = None
