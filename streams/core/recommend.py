"""One line that an operator can act on."""

from __future__ import annotations

from streams.contract.findings import Cause, Kind, Verdict

_LIMITS = {
    Kind.BANDWIDTH_SATURATION: "cap its egress",
    Kind.INCAST: "cap the senders that fill it",
    Kind.QP_ICM_EXHAUSTION: "cap its queue pairs",
    Kind.MR_MTT_THRASH: "register its memory once and keep it",
}


def recommendation(verdict: Verdict, kind: Kind, causes: list[Cause], link_port: str | None) -> str | None:
    """What to do about an incident; None where nothing honest can be said."""
    if verdict is Verdict.AMBIGUOUS and causes:
        names = " or ".join(_pod(cause) for cause in causes)
        return f"pause {names} for ten seconds: the job recovers with the guilty one"
    if causes:
        cause = causes[0]
        limit = _LIMITS.get(kind, "limit what it does there")
        return f"move {_pod(cause)} off port {cause.device} of {cause.node}, or {limit}"
    if link_port is not None:
        return f"check cable, transceiver and peer of {link_port}"
    if verdict is Verdict.NOT_FABRIC:
        return "look at the job itself (input, compute, checkpoints): its transfers were as fast as ever"
    return None


def _pod(cause: Cause) -> str:
    return f"{cause.namespace}/{cause.pod}" if cause.namespace and cause.pod else cause.pod or cause.holder
