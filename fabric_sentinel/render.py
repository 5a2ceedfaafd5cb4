"""An incident as a person wants to read it in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.text import Text

from fabric_sentinel.incident_json import MICROS, pod_label
from streams.contract.features import LEVELS
from streams.contract.findings import Cause, Incident, Kind, RuledOut, Verdict, Victim
from streams.contract.header import Rung, Source
from streams.contract.ticks import TICKS_PER_SECOND, rfc3339_of_tick, rfc3339_of_us, us_of_tick

LABEL_COLUMNS = 13
WIDTH_COLUMNS = 110
SHOWN_PODS = 3
BIG_COUNT = 10_000
_SYMBOLS = {"USD": "$", "EUR": "€", "GBP": "£"}

KIND_WORDS = {
    Kind.UNKNOWN: "no mechanism stated",
    Kind.BANDWIDTH_SATURATION: "the port was full: somebody else's bytes took the victim's bandwidth",
    Kind.QP_ICM_EXHAUSTION: "too many queue pairs: the NIC evicts connection state that the victim needs",
    Kind.MR_MTT_THRASH: "memory registrations churn: the NIC's translation cache thrashes",
    Kind.RNR_STALL: "receiver not ready: senders back off and retry",
    Kind.PFC_STORM: "priority pause frames stop the port",
    Kind.ECN_CNP: "congestion marks slow the victim's senders down",
    Kind.INCAST: "many senders hit one port at once",
    Kind.LINK_FLAP: "the link goes down and up",
    Kind.LINK_DEGRADED: "the link runs below its rate or with errors",
    Kind.FABRIC_CONGESTION: "the fabric is congested beyond any one port",
    Kind.HANG: "collectives stopped",
    Kind.NOT_FABRIC: "the time was lost outside the fabric (compute, data, host)",
    Kind.UNEXPLAINED: "slower, and nothing that we observe explains it",
}
NOBODY_WORDS = {
    Verdict.NOT_FABRIC: "no pod is guilty: the job lost its time outside the fabric",
    Verdict.LINK: "no pod is guilty: a link is",
    Verdict.FABRIC: "no pod is guilty: the fabric itself is congested",
    Verdict.UNEXPLAINED: "nobody is named: nothing that we observe explains the slowdown",
    Verdict.AMBIGUOUS: "nobody is named: more than one suspect fits, and the evidence does not tell them apart",
    Verdict.NO_BASELINE: "nobody is named: the job has no baseline yet to be slower than",
    Verdict.WITHDRAWN: "withdrawn: an earlier accusation did not hold",
}
_NOBODY_YET = "nobody is named yet"
REASON_WORDS = {
    "started_after": "it started after the slowdown began",
    "stopped_before": "it stopped while the job was still slow",
    "went_on": "it went on after the job had recovered",
    "active_before": "it was as active before, while the job was well",
    "too_little": "it used too little to matter",
    "other_port": "it uses none of the job's ports",
    "fits_less": "its rise and fall fit the slowdown less well",
    "transfer_unchanged": "the job's own transfers were as fast as ever",
    "other_node": "it is on another node",
    "own_job": "it belongs to the slowed job itself",
}
NUMBER_WORDS = {
    "quiet_level": "before",
    "episode_level": "during",
    "edge_tick": "rose",
    "stop_tick": "fell",
    "onset_tick": "job slow from",
    "recovered_tick": "job well from",
}
RUNG_WORDS = {
    Rung.PROCESS_BYTES: "bytes per process, from the kernel",
    Rung.PROCESS_COUNTERS: "hardware counters per process",
    Rung.KERNEL_PROBES: "RDMA resources per process, from kernel probes",
    Rung.PORT_TOTALS: "totals of the port only",
}
_VERDICT_STYLE = {Verdict.CONFIRMED: "bold red", Verdict.SUSPECTED: "bold yellow", Verdict.WITHDRAWN: "dim"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line: a label (empty where it goes on), its text, its style."""

    label: str = ""
    text: str = ""
    style: str = ""


def show(incident: Incident, out: TextIO, *, width: int = WIDTH_COLUMNS) -> None:
    """Print it: in colour where `out` is a terminal, plain otherwise."""
    if not out.isatty():
        out.write(as_text(incident, width=width))
        return
    console = Console(file=out, highlight=False, soft_wrap=True)
    for line in _wrapped(incident, width):
        console.print(Text.assemble((line.label.ljust(LABEL_COLUMNS), "cyan"), (line.text, line.style)))


def as_text(incident: Incident, *, width: int = WIDTH_COLUMNS) -> str:
    """Plain text, no line longer than `width` unless one word is, ending in a newline."""
    return "".join(
        f"{line.label.ljust(LABEL_COLUMNS)}{line.text}".rstrip() + "\n" for line in _wrapped(incident, width)
    )


def headline(incident: Incident) -> str:
    """Who did what to whom, in one sentence."""
    victims = ", ".join(victim.job_name or victim.job for victim in incident.victims) or "no job"
    if not incident.causes:
        return NOBODY_WORDS.get(incident.verdict, _NOBODY_YET)
    if incident.verdict is Verdict.AMBIGUOUS:
        either = " or ".join(_who(cause) for cause in incident.causes)
        return f"{either} slowed {victims}: the evidence does not tell them apart"
    causes = " and ".join(_who(cause) for cause in incident.causes)
    claim = {Verdict.CONFIRMED: "slowed", Verdict.WITHDRAWN: "did not slow"}.get(incident.verdict, "probably slowed")
    if incident.recovered_tick is None and incident.verdict is Verdict.SUSPECTED:
        claim = "is probably slowing"
    return f"{causes} {claim} {victims}"


def duration_words(ticks: int) -> str:
    """Ticks as a person says them: 8.4 s, 4 m 12 s, 1 h 03 m."""
    seconds, tenths = divmod(ticks, TICKS_PER_SECOND)
    minutes, rest = divmod(seconds, 60)
    if minutes == 0:
        return f"{seconds}.{tenths} s"
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} m"


def money_words(micros: int, currency: str | None) -> str:
    """An amount with its currency; the currency's code where it has no sign."""
    amount = f"{micros / MICROS:,.2f}"
    symbol = _SYMBOLS.get(currency or "")
    return f"{symbol}{amount}" if symbol else f"{amount} {currency or '(no currency stated)'}"


def number_words(name: str, value: int) -> str:
    """A number of a finding, by the unit that its name ends in."""
    stem, _, unit = name.rpartition("_")
    words = {
        "e4": f"{value / 100:.1f} %",
        "ticks": f"{value / TICKS_PER_SECOND:.1f} s",
        "tick": _clock(value),
        "us": f"{value / 1000:,.1f} ms",
        "bytes": bytes_words(value),
    }
    if not stem or unit not in words:
        return f"{NUMBER_WORDS.get(name, name.replace('_', ' '))} {value:,}"
    return f"{NUMBER_WORDS.get(name, stem.replace('_', ' '))} {words[unit]}"


def bytes_words(size_bytes: int) -> str:
    """A number of bytes in decimal units."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def _wrapped(incident: Incident, width: int) -> Iterator[Line]:
    for line in _lines(incident):
        indent = line.text[: len(line.text) - len(line.text.lstrip())]
        pieces = textwrap.wrap(
            line.text,
            max(20, width - LABEL_COLUMNS),
            subsequent_indent=indent + "  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for number, piece in enumerate(pieces or [""]):
            yield Line(label=line.label if number == 0 else "", text=piece, style=line.style)


def _lines(incident: Incident) -> Iterator[Line]:
    style = _VERDICT_STYLE.get(incident.verdict, "bold")
    simulated = " · simulated" if incident.source is Source.SIMULATED else ""
    yield Line(label="INCIDENT", text=f"{incident.incident_id}  cluster {incident.cluster}{simulated}", style="dim")
    yield Line(text=headline(incident), style=style)
    yield from _cause_lines(incident)
    yield Line(label="kind", text=f"{incident.kind.value}: {KIND_WORDS[incident.kind]}")
    yield Line(label="duration", text=_duration(incident))
    for number, victim in enumerate(incident.victims):
        yield Line(label="victims" if number == 0 else "", text=_victim(victim), style="bold")
        yield Line(text="  " + _where(victim))
    yield from _cost_lines(incident)
    for number, hypothesis in enumerate(incident.ruled_out):
        yield Line(label="ruled out" if number == 0 else "", text=_ruled_out(hypothesis))
    for number, gap in enumerate(incident.not_observed):
        yield Line(label="not seen" if number == 0 else "", text=gap)
    if layers := _recovery(incident):
        yield Line(label="recovery", text=layers)
    yield Line(label="verdict", text=_verdict(incident), style=style)
    if incident.merged_into is not None:
        yield Line(label="merged", text=f"into incident {incident.merged_into}")
    if incident.recommendation is not None:
        yield Line(label="advice", text=incident.recommendation, style="bold green")


def _cause_lines(incident: Incident) -> Iterator[Line]:
    if not incident.causes:
        text = "none" if incident.link_port is None else f"link {incident.link_port}"
        yield Line(label="cause", text=text)
    for number, cause in enumerate(incident.causes):
        tenant = f"  tenant {cause.tenant}" if cause.tenant else ""
        share = f"  {cause.share_e4 / 100:.0f} % of the loss" if len(incident.causes) > 1 else ""
        yield Line(label="cause" if number == 0 else "", text=_who(cause) + tenant + share, style="bold")
        yield Line(text=f"  node {cause.node}, device {cause.device}, port {cause.port}{_dose(cause)}")


def _who(cause: Cause) -> str:
    return pod_label(cause.namespace, cause.pod, cause.holder)


def _dose(cause: Cause) -> str:
    """What it did, before and during, where both are known."""
    if cause.quiet_level is None or cause.episode_level is None:
        return f"; told by {cause.feature}"
    quiet, level = (_level(cause.feature, value) for value in (cause.quiet_level, cause.episode_level))
    rate = "" if cause.feature in LEVELS else " (per 100 ms)"
    return f"; {cause.feature} {quiet} before, {level} during{rate}"


def _level(feature: str, value: int) -> str:
    return bytes_words(value) if feature.endswith("_bytes") else f"{value:,}"


def _duration(incident: Incident) -> str:
    onset = rfc3339_of_tick(incident.onset_tick)
    if incident.recovered_tick is None:
        return f"{duration_words(incident.as_of_tick - incident.onset_tick)} so far, still slow (since {onset})"
    whole = duration_words(incident.recovered_tick - incident.onset_tick)
    return f"{whole} ({onset} to {rfc3339_of_tick(incident.recovered_tick)})"


def _victim(victim: Victim) -> str:
    loss = f"↓ {victim.loss_e4 / 100:.1f} % throughput"
    spread = f"({victim.loss_low_e4 / 100:.1f} to {victim.loss_high_e4 / 100:.1f})"
    lost = victim.gpu_ms_lost
    seconds = "GPU-seconds not known" if lost is None else f"{lost / 1000:,.1f} GPU-seconds"
    cost = "" if victim.cost_micros is None else f"  {money_words(victim.cost_micros, victim.currency)}"
    return f"{victim.job_name or victim.job}  {loss} {spread}  {seconds}{cost}"


def _where(victim: Victim) -> str:
    names = [pod_label(pod.namespace, pod.name, pod.pod_uid) for pod in victim.pods]
    more = f" and {len(names) - SHOWN_PODS} more" if len(names) > SHOWN_PODS else ""
    parts = [
        f"tenant {victim.tenant}" if victim.tenant else "",
        "GPUs not known" if victim.gpus is None else _plural(victim.gpus, "GPU"),
        f"on {', '.join(victim.nodes)}" if victim.nodes else "",
        f"pods {', '.join(names[:SHOWN_PODS])}{more}" if names else "",
    ]
    return ", ".join(part for part in parts if part)


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _cost_lines(incident: Incident) -> Iterator[Line]:
    lost = [victim.gpu_ms_lost for victim in incident.victims if victim.gpu_ms_lost is not None]
    seconds = f"{sum(lost) / 1000:,.1f} GPU-seconds" if lost else "GPU-seconds not known"
    if incident.total_cost_micros is not None:
        source = next((victim.price_source for victim in incident.victims if victim.price_source), None)
        said = f" (price from {source})" if source else ""
        money = f", {money_words(incident.total_cost_micros, incident.currency)}{said}"
    else:
        money = ", no money: no price or no GPU count is known" if incident.victims else ""
    yield Line(label="total lost", text=seconds + money)


def _ruled_out(hypothesis: RuledOut) -> str:
    who = pod_label(hypothesis.namespace, hypothesis.pod, hypothesis.holder or hypothesis.what)
    where = f" on {hypothesis.node}" if hypothesis.node else ""
    why = REASON_WORDS.get(hypothesis.reason, hypothesis.reason.replace("_", " "))
    numbers = ", ".join(number_words(name, value) for name, value in hypothesis.numbers.items())
    return f"{who}{where}: {why}" + (f" ({numbers})" if numbers else "")


def _recovery(incident: Incident) -> str:
    recovery = incident.recovery
    layers = {
        "link": recovery.link,
        "routing": recovery.routing,
        "queue pairs": recovery.queue_pair,
        "traffic": recovery.traffic,
        "workload": recovery.workload,
        "telemetry": recovery.telemetry,
    }
    return ", ".join(f"{name} {_clock(tick)}" for name, tick in layers.items() if tick is not None)


def _verdict(incident: Incident) -> str:
    after = duration_words(max(0, incident.decided_tick - incident.onset_tick))
    rung = RUNG_WORDS.get(incident.rung)
    evidence = f"; best evidence: {rung}" if rung else ""
    return f"{incident.verdict.value}, {after} after the onset{evidence} (revision {incident.revision})"


def _clock(tick: int) -> str:
    """The time of day in UTC, to a tenth of a second: the date stands with the duration."""
    return rfc3339_of_us(us_of_tick(tick))[11:21]
