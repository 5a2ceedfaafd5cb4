"""Decides where to probe an NCCL library: which exported functions, with which BPF programs, each code address once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Exported name without its prefix, and the suffix of the two programs in bpf/nccl_calls.c.
OPERATIONS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "Send": "send",
    "Recv": "recv",
    "AlltoAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
    "PutSignal": "put_signal",
    "Signal": "signal",
    "WaitSignal": "wait_signal",
}
# ncclBcast does nothing but call ncclBroadcast: probed only where the latter is missing.
FALLBACKS = {"Bcast": ("bcast", "Broadcast")}
# bpf/nccl_comms.c
COMMUNICATORS = {
    "CommInitRank": "init_rank",
    "CommInitRankConfig": "init_rank_config",
    "CommInitRankScalable": "init_rank_scalable",
    "CommInitAll": "init_all",
    "CommSplit": "split",
    "CommShrink": "shrink",
    "CommGrow": "grow",
    "CommFinalize": "finalize",
    "CommDestroy": "destroy",
    "CommAbort": "abort",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePoint:
    """One function to probe at its entry (`enter_<program>`) and its return (`leave_<program>`)."""

    symbol: str
    offset: int
    program: str


def probe_points(offsets: Mapping[str, int]) -> list[ProbePoint]:
    """Where to probe a library with these exports.

    ncclX is a weak alias of pncclX at one address, so two probes would count each call twice; the ...Config forms
    are bodies of their own and do not call the plain ones.
    """
    wanted = dict(OPERATIONS)
    wanted |= {f"{name}Config": program for name, program in OPERATIONS.items()}
    wanted |= {
        name: program
        for name, (program, replaces) in FALLBACKS.items()
        if f"nccl{replaces}" not in offsets and f"pnccl{replaces}" not in offsets
    }
    wanted |= COMMUNICATORS
    points: dict[int, ProbePoint] = {}
    for name, program in wanted.items():
        for symbol in (f"nccl{name}", f"pnccl{name}"):
            if symbol in offsets:
                point = ProbePoint(symbol=symbol, offset=offsets[symbol], program=program)
                points.setdefault(point.offset, point)
    return list(points.values())


def is_nccl(offsets: Mapping[str, int]) -> bool:
    """Whether a file with these exports holds a visible NCCL."""
    return "ncclAllReduce" in offsets or "pncclAllReduce" in offsets
