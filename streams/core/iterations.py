"""Steps of a job from its NCCL calls: the rarest call that recurs evenly marks them, on every rank alike."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.contract.calls import COLUMNS, Column
from streams.contract.rosters import roster_of
from streams.contract.slices import JobSlice, SliceCommunicator
from streams.contract.ticks import TICK_US

LEARN_CALLS = 5  # Four intervals: fewer can look even by chance
LEARN_MEMORY = 256  # Call times kept per token while learning
LEARN_RECENT, LEARN_GROUPS = 32, 6  # Calls, or groups, that must be even: what came before may be another pace
HICCUPS = 1
LEARN_TOKENS = 512  # Per rank; a job with more different calls has no rare one that recurs
LARGEST_GROUP = 64  # Calls of the anchor per step
EVEN_SPREAD = 0.2  # MAD of the intervals over their median: real steps wander by 5 %
ODD = 0.25  # An interval this far from the median belongs to no even beat
MOST_ODD = 0.1  # Pauses for checkpoints and slow steps are rarer
_VALUE = np.dtype("<i8")
KEPT_STEPS = 16  # Per rank: what the lead's steps are compared with
_CALLS, _FIRST_US, _LAST_US = int(Column.CALLS), int(Column.FIRST_US), int(Column.LAST_US)
_COMMUNICATOR, _OP, _DTYPE = int(Column.COMMUNICATOR), int(Column.OP), int(Column.DTYPE)
_COUNT, _BYTES = int(Column.COUNT), int(Column.BYTES)
PARTNER_WAIT_TICKS = 10  # How long a step of the lead waits for the same step of the other ranks


class Token(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What makes two calls the same call of the program."""

    comm: str
    op: int
    dtype: int
    count: int


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """The call that marks steps: every `group`-th one."""

    token: Token
    group: int


class Sample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One or more whole steps between two marks."""

    end_us: int
    steps: int
    elapsed_us: int
    nccl_bytes: int = 0  # What the lead's node has handed to NCCL since the mark before

    @property
    def step_us(self) -> int:
        """Mean duration of its steps."""
        return self.elapsed_us // self.steps

    @property
    def start_us(self) -> int:
        """When its first step began."""
        return self.end_us - self.elapsed_us


class Rank(msgspec.Struct, kw_only=True):
    """One process's calls of the anchor."""

    node: str
    pid: int
    moves_bytes: bool = False
    learning: dict[str, list[int]] = {}  # Encoded token -> call times
    calls: int = 0
    mark_us: int = -1
    ends_us: list[int] = []  # Of its latest steps
    steps_us: list[int] = []  # And their durations
    nccl_bytes: int = 0  # Since the last mark
    last_call_us: int = -1


class Steps(msgspec.Struct, kw_only=True):
    """All ranks of a job, its anchor, and the lead rank whose steps pace the job's."""

    anchor: Anchor | None = None
    lead: str = ""
    ranks: dict[str, Rank] = {}
    waiting: list[Sample] = []


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Roster:
    """One node's communicators and the rank behind each, resolved once until somebody comes, goes, or leads."""

    raw: bytes
    communicators: list[SliceCommunicator]
    anchor: Anchor | None
    lead: str
    ranks: list[Rank]
    keys: list[str]
    calls_anchor: list[bool]  # Its calls of the anchor's operation are the anchor
    has_lead: bool


def take(steps: Steps, piece: JobSlice, roster: Roster | None) -> Roster:
    """Add one slice's rows: to the learning memory before the anchor is known, to the ranks' samples after.

    `roster` is what the call before returned for this node.
    """
    if roster is None or roster.anchor is not steps.anchor or roster.lead != steps.lead or roster.raw != piece.roster:
        roster = _roster(steps, piece)
    if not piece.rows:
        return roster
    rows = np.frombuffer(piece.rows, _VALUE).reshape(-1, COLUMNS)
    base_us = piece.first_tick * TICK_US
    if steps.anchor is None:
        _learn(roster, rows, base_us)
    else:
        _follow(steps, steps.anchor, roster, rows, base_us)
    return roster


def choose_anchor(steps: Steps) -> bool:
    """Choose the rarest token of the lead rank that recurs evenly; True once there is one."""
    lead = _choose_lead(steps)
    if lead is None:
        return False
    learned = steps.ranks[lead].learning
    for encoded, times in sorted(learned.items(), key=lambda item: (len(item[1]), item[0])):
        if len(times) >= LEARN_CALLS and (group := even_group(np.array(times, np.int64))):
            steps.anchor = Anchor(token=_decoded(encoded), group=group)
            steps.lead = lead
            for rank in steps.ranks.values():
                rank.learning = {}
            return True
    return False


def even_group(times: NDArray[np.int64]) -> int:
    """The smallest number of calls whose durations are even; 0 if there is none.

    Of equal calls in bursts of L, groups of L leave no odd duration, groups of L - 1 one in L: so the least odd wins.
    One odd duration more is a hiccup (a cold start, a checkpoint), no reason to see two steps as one.
    """
    odd: dict[int, tuple[int, float]] = {}
    for group in range(1, min(LARGEST_GROUP, (len(times) - 1) // (LEARN_CALLS - 1)) + 1):
        recent = times[-(max(LEARN_RECENT, LEARN_GROUPS * group) + 1) :]
        gaps = recent[group:] - recent[:-group]
        middle = float(np.median(gaps))
        if middle <= 0 or float(np.median(np.abs(gaps - middle))) > EVEN_SPREAD * middle:
            continue
        count = int((np.abs(gaps - middle) > ODD * middle).sum())
        odd[group] = count, count / len(gaps)
    if min((part for _, part in odd.values()), default=1.0) > MOST_ODD:
        return 0
    fewest = min(count for count, _ in odd.values())
    return next(group for group, (count, _) in odd.items() if count <= fewest + HICCUPS)


def job_steps(steps: Steps, tick: int) -> list[Sample]:
    """The job's own steps, in order: the lead's, each with the shortest duration that any rank saw for it.

    The last rank to arrive does not wait, so the shortest is free of other ranks' delays. A step waits until every
    rank that moves bytes has told of it, or `PARTNER_WAIT_TICKS`.
    """
    lead = steps.ranks.get(steps.lead)
    if lead is None or not steps.waiting:
        return []
    others = [rank for rank in steps.ranks.values() if rank is not lead and (rank.moves_bytes or not lead.moves_bytes)]
    out: list[Sample] = []
    while steps.waiting:
        sample = steps.waiting[0]
        shortest = _shortest(sample, others, wait=tick < sample.end_us // TICK_US + PARTNER_WAIT_TICKS)
        if shortest is None:
            break
        del steps.waiting[0]
        if shortest < sample.step_us:
            sample = Sample(
                end_us=sample.end_us,
                steps=sample.steps,
                elapsed_us=shortest * sample.steps,
                nccl_bytes=sample.nccl_bytes,
            )
        out.append(sample)
    return out


def anchor_lost(steps: Steps, *, patience_us: int) -> bool:
    """True where the lead's node goes on calling, but for long not the anchor: the program does other work."""
    lead = steps.ranks.get(steps.lead)
    return lead is not None and lead.mark_us >= 0 and lead.last_call_us - lead.mark_us > patience_us


def replace_lead(steps: Steps, gone: str) -> bool:
    """Follow another rank that calls the anchor; False if nobody does."""
    steps.ranks.pop(gone, None)
    steps.waiting = []
    candidates = [key for key, rank in steps.ranks.items() if rank.ends_us]
    steps.lead = min(candidates, default="", key=lambda key: (not steps.ranks[key].moves_bytes, key))
    return bool(steps.lead)


def lead_silent(steps: Steps) -> None:
    """Follow another node's rank while the lead's is silent; without one, what was normal waits for the lead's return.

    The calls that were missed meanwhile are unknown, so the step that they would end is not measured.
    """
    silent = steps.ranks[steps.lead].node
    for rank in steps.ranks.values():
        if rank.node == silent:
            rank.mark_us = -1
    steps.waiting = []
    heard = [key for key, rank in steps.ranks.items() if rank.ends_us and rank.node != silent]
    steps.lead = min(heard, default=steps.lead, key=lambda key: (not steps.ranks[key].moves_bytes, key))


def _choose_lead(steps: Steps) -> str | None:
    heard = [key for key, rank in steps.ranks.items() if rank.learning]
    return min(heard, default=None, key=lambda key: (not steps.ranks[key].moves_bytes, key))


def _roster(steps: Steps, piece: JobSlice) -> Roster:
    communicators = roster_of(piece.roster).communicators
    keys = [f"{piece.node}|{member.pid}" for member in communicators]
    for key, member in zip(keys, communicators, strict=True):
        rank = steps.ranks.get(key)
        if rank is None:
            rank = steps.ranks[key] = Rank(node=piece.node, pid=member.pid)
        rank.moves_bytes = rank.moves_bytes or member.moves_bytes
    for key in [key for key, rank in steps.ranks.items() if rank.node == piece.node]:
        if key not in keys and key != steps.lead:
            del steps.ranks[key]  # Its process is gone
    comm = steps.anchor.token.comm if steps.anchor is not None else ""
    with_anchor = {member.pid for member in communicators if member.comm == comm}
    return Roster(
        raw=piece.roster,
        communicators=communicators,
        anchor=steps.anchor,
        lead=steps.lead,
        ranks=[steps.ranks[key] for key in keys],
        keys=keys,
        # Ranks of another replica call the same collective on a communicator of their own, never on the lead's.
        calls_anchor=[member.comm == comm or member.pid not in with_anchor for member in communicators],
        has_lead=steps.lead in keys,
    )


def _learn(roster: Roster, rows: NDArray[np.int64], base_us: int) -> None:
    for row in rows.tolist():
        index = row[Column.COMMUNICATOR]
        learning = roster.ranks[index].learning
        comm = roster.communicators[index].comm
        encoded = _encoded(comm, row[Column.OP], row[Column.DTYPE], row[Column.COUNT])
        if encoded not in learning and len(learning) >= LEARN_TOKENS:
            continue
        times = learning.setdefault(encoded, [])
        calls, first, last = row[Column.CALLS], row[Column.FIRST_US], row[Column.LAST_US]
        spread = max(calls - 1, 1)
        times.extend(base_us + first + (last - first) * number // spread for number in range(calls)[-LEARN_MEMORY:])
        del times[:-LEARN_MEMORY]


def _follow(steps: Steps, anchor: Anchor, roster: Roster, rows: NDArray[np.int64], base_us: int) -> None:
    token = anchor.token
    if roster.has_lead:
        lead = steps.ranks[steps.lead]
        # The whole node's calls: one rank's alone would cost a mask, and change no ratio.
        lead.nccl_bytes += int(rows[:, _BYTES].dot(rows[:, _CALLS]))
        lead.last_call_us = base_us
    (marks,) = (rows[:, _COUNT] == token.count).nonzero()
    op, dtype, group = token.op, token.dtype, anchor.group
    for row in rows.take(marks, axis=0).tolist():
        index = row[_COMMUNICATOR]
        if row[_OP] != op or row[_DTYPE] != dtype or not roster.calls_anchor[index]:
            continue
        sample = _marked(roster.ranks[index], group, row, base_us)
        if sample is not None and roster.keys[index] == steps.lead:
            steps.waiting.append(sample)


def _marked(rank: Rank, group: int, row: list[int], base_us: int) -> Sample | None:
    """Count a row's calls; the steps that it completes, if any."""
    calls = row[_CALLS]
    before = rank.calls
    rank.calls = after = before + calls
    whole = after // group - before // group
    if not whole:
        return None
    first, last = row[_FIRST_US], row[_LAST_US]
    index = after // group * group - before - 1  # Of the call in this row that completes the last whole step
    mark_us = base_us + (last if index == calls - 1 else first + (last - first) * index // (calls - 1))
    previous, nccl_bytes = rank.mark_us, rank.nccl_bytes
    rank.mark_us, rank.nccl_bytes = mark_us, 0
    if previous < 0 or mark_us <= previous:
        return None
    rank.ends_us.append(mark_us)
    rank.steps_us.append((mark_us - previous) // whole)
    if len(rank.ends_us) > KEPT_STEPS:
        del rank.ends_us[0], rank.steps_us[0]
    return Sample(end_us=mark_us, steps=whole, elapsed_us=mark_us - previous, nccl_bytes=nccl_bytes)


def _shortest(sample: Sample, others: list[Rank], *, wait: bool) -> int | None:
    """The shortest duration of a step over ranks; None: a rank that keeps pace has not told of it yet (if `wait`)."""
    end_us, shortest = sample.end_us, sample.step_us
    half_us = max(shortest // 2, TICK_US // 2)
    gone_us = end_us - 3 * sample.elapsed_us
    for rank in others:
        ends_us = rank.ends_us
        if not ends_us or ends_us[-1] < gone_us:
            continue
        if wait and ends_us[-1] < end_us - half_us:
            return None
        index = len(ends_us) - 1
        while index > 0 and abs(ends_us[index - 1] - end_us) < abs(ends_us[index] - end_us):
            index -= 1
        if abs(ends_us[index] - end_us) <= half_us and rank.steps_us[index] < shortest:
            shortest = rank.steps_us[index]
    return shortest


def _encoded(comm: str, op: int, dtype: int, count: int) -> str:
    return f"{count:020d}|{op}|{dtype}|{comm}"


def _decoded(encoded: str) -> Token:
    count, op, dtype, comm = encoded.split("|", 3)
    return Token(comm=comm, op=int(op), dtype=int(dtype), count=int(count))
