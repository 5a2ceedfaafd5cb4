"""Says what the agent makes of raw inputs: the same functions, on files that somebody attaches to a report."""

import errno
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from producers.identity.cgroup_text import read_cgroup
from producers.kernel.nccl_maps import DELETED, carrier_files, library_path
from producers.ports.delta import ABSENT
from producers.ports.discover import PortPlace, discover, read_text
from producers.ports.ethtool_text import parse_ethtool_text
from producers.ports.fields import parse_rate_bps, parse_state
from producers.ports.flush import Gap
from producers.ports.gaps import gaps_of_rows
from producers.ports.readers import PortReaders
from streams.contract.counters import AtMaximum, CounterKind, counter_spec, is_published

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One input: what was understood (None: nothing), what was left out, and what to know about it."""

    input: str
    understood: Json
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    readable: bool = True

    def as_json(self) -> dict[str, Json]:
        """The line that `fabric-sentinel explain --json` prints."""
        return {
            "input": self.input,
            "understood": self.understood,
            "ignored": list(self.ignored),
            "notes": list(self.notes),
        }


class UnreadableInputError(Exception):
    """The input is not what its kind should be; the text says why."""


class _NoDriver:
    """A folder that was copied from another machine has no driver to ask."""

    def names(self, netdev: str) -> tuple[str, ...]:
        raise OSError(errno.EOPNOTSUPP, netdev)

    def values(self, netdev: str, count: int) -> NDArray[np.uint64]:
        raise OSError(errno.EOPNOTSUPP, f"{netdev} {count}")


def explain(kind: str, path: Path) -> Explanation:
    """What we make of the file (for `sysfs`: folder) `path`; KeyError for a kind not in `EXPLAINERS`."""
    explainer = EXPLAINERS[kind]
    try:
        return explainer(path)
    except UnreadableInputError as error:
        return Explanation(input=str(path), understood=None, notes=(str(error),), readable=False)
    except OSError as error:
        reason = error.strerror or str(error)
        return Explanation(input=str(path), understood=None, notes=(f"cannot be read: {reason}",), readable=False)


def explain_cgroup(path: Path) -> Explanation:
    """Whose process a /proc/PID/cgroup text (or a cgroup path) belongs to."""
    reading = read_cgroup(path.read_text(errors="replace"))
    notes: list[str] = []
    if reading.ambiguous:
        notes.append("lines name different pods or containers: nobody is named")
    if reading.identity is None and reading.container_id is not None and not reading.ambiguous:
        runtime = reading.container_runtime or "unknown"
        notes.append(f"container {reading.container_id} outside Kubernetes (runtime {runtime})")
    if reading.identity is not None and reading.identity.pod_uid and "-" not in reading.identity.pod_uid:
        notes.append("static pod: the uid is its configuration's hash, in the annotation kubernetes.io/config.hash")
    understood: Json = None if reading.identity is None else {**asdict(reading.identity)}
    return Explanation(input=str(path), understood=understood, notes=tuple(notes))


def explain_sysfs(path: Path) -> Explanation:
    """The ports, states, rates and counters below a copy of /sys."""
    if not path.is_dir():
        raise UnreadableInputError("not a folder")
    places = discover(path, every_row=True)
    if not places:
        raise UnreadableInputError("no class/infiniband/*/ports/* below it")
    readers = PortReaders(places, _NoDriver())
    try:
        readings = [int(value) for value in readers.read()]
        reasons = dict(readers.reasons())
    finally:
        readers.close()
    counters: list[dict[str, Json]] = [{} for _ in places]
    notes: list[str] = []
    for series, value in zip(readers.series, readings, strict=True):
        if value == ABSENT or series.name.startswith("port/"):
            continue
        bare = series.name.partition("/")[2]
        mine = counters[series.port]
        mine[series.name if bare in mine else bare] = value
        notes += _notes_on(places[series.port].key, series.name, value)
    keyed = [((places[series.port].key, series.name), row) for row, series in enumerate(readers.series)]
    gaps: set[Gap] = {gap for place in places for gap in place.gaps}
    gaps.update(gaps_of_rows((key, reasons[row]) for key, row in keyed if row in reasons))
    understood: list[Json] = [_port(place, mine) for place, mine in zip(places, counters, strict=True)]
    return Explanation(
        input=str(path),
        understood=understood,
        ignored=tuple(f"{gap.source} {gap.what}: {gap.reason}" for gap in sorted(gaps)) + _settings(places),
        notes=tuple(notes),
    )


def explain_ethtool(path: Path) -> Explanation:
    """The statistics in the output of `ethtool -S`; the netdev is not in the text."""
    found = parse_ethtool_text(path.read_text(errors="replace"))
    if not found.values:
        raise UnreadableInputError(found.error or "no statistics in it")
    unpublished = [name for name, _ in found.values if not is_published(f"eth/{name}")]
    counters: dict[str, Json] = dict(found.values)
    notes = [note for name, value in found.values for note in _notes_on("", f"eth/{name}", value)]
    if unpublished:
        notes.append(f"{len(unpublished)} rows per queue or channel are not published: {unpublished[0]} …")
    port: Json = {"device": None, "port": None, "state": None, "rate_bps": None, "counters": counters}
    return Explanation(input=str(path), understood=[port], ignored=found.ignored, notes=tuple(notes))


def explain_maps(path: Path) -> Explanation:
    """The NCCL library in a /proc/PID/maps text."""
    text = path.read_text(errors="replace")
    library = next((found for line in text.splitlines() if (found := library_path(line)) is not None), None)
    carriers = [file.path for file in carrier_files(text)]
    notes = [f"{carrier} may hold a statically linked NCCL" for carrier in carriers if library is None]
    if library is not None and f"{library}{DELETED}" in text:
        notes.append(f"{library} is marked deleted: the path may name another file by now")
    return Explanation(input=str(path), understood=library, notes=tuple(notes))


EXPLAINERS: Mapping[str, Callable[[Path], Explanation]] = MappingProxyType(
    {"cgroup": explain_cgroup, "sysfs": explain_sysfs, "ethtool": explain_ethtool, "maps": explain_maps}
)
"""What each KIND runs; the front door adds the kinds of other producers."""


def _port(place: PortPlace, counters: dict[str, Json]) -> dict[str, Json]:
    state = parse_state(read_text(place.folder / "state") or "")
    return {
        "device": place.device,
        "port": place.port,
        "state": None if state is None else state.name,
        "rate_bps": parse_rate_bps(read_text(place.folder / "rate") or ""),
        "counters": counters,
    }


def _settings(places: tuple[PortPlace, ...]) -> tuple[str, ...]:
    """hw_counters that are no counters."""
    return tuple(
        f"{place.key} hw/lifespan: a setting (the driver's cache time in ms)"
        for place in places
        if (place.folder / "hw_counters" / "lifespan").exists()
    )


def _notes_on(port: str, name: str, value: int) -> list[str]:
    """What somebody who reads this number must know."""
    spec, label = counter_spec(name), f"{port} {name}".strip()
    if spec.kind is CounterKind.GAUGE:
        return [f"{label} is a gauge ({spec.unit})"]
    if spec.at_maximum is AtMaximum.SATURATES and value == spec.maximum:
        return [f"{label} is at its maximum ({spec.width_bits} bits): more of it cannot be counted"]
    if spec.multiplier != 1:
        return [f"{label} counts units of {spec.multiplier} {spec.unit}"]
    return []
