"""Tells what was not seen in few words: many rows of one port and one reason become one gap."""

from collections import defaultdict
from collections.abc import Iterable

from producers.ports.flush import Gap
from producers.ports.rows import RowKey

NAMED_IN_A_GAP = 3


def gaps_of_rows(reasons: Iterable[tuple[RowKey, str]]) -> Iterable[Gap]:
    """One gap per port, source of counters and reason; up to three names are spelled out."""
    together: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (port, name), reason in reasons:
        together[port, name.partition("/")[0], reason].append(name)
    for (port, prefix, reason), names in together.items():
        few = len(names) <= NAMED_IN_A_GAP
        what = ", ".join(names) if few else f"{prefix}/* ({len(names)} counters)"
        yield Gap(source=port, what=what, reason=reason)
