"""Reads what `ethtool -S` printed."""

from dataclasses import dataclass

from producers.ports.ethtool import unique_names

_NO_STATISTICS = ("no stats available", "Cannot get stats")


@dataclass(frozen=True, slots=True, kw_only=True)
class EthtoolText:
    """Statistics in their order, and the lines that are none; `error` is the tool's own refusal."""

    values: tuple[tuple[str, int], ...]
    ignored: tuple[str, ...]
    error: str | None


def parse_ethtool_text(text: str) -> EthtoolText:
    """Understand "NIC statistics:" output: a name may hold spaces and even ": ", so the last ": " divides."""
    names: list[str] = []
    numbers: list[int] = []
    ignored: list[str] = []
    error = None
    for line in text.splitlines():
        name, colon, value = line.strip().rpartition(": ")
        if colon and value.isascii() and value.isdecimal():
            names.append(name)
            numbers.append(int(value))
        elif line.strip().startswith(_NO_STATISTICS):
            error = line.strip()
        elif line.strip() not in ("", "NIC statistics:"):
            ignored.append(line.strip())
    return EthtoolText(
        values=tuple(zip(unique_names(names), numbers, strict=True)), ignored=tuple(ignored), error=error
    )
