"""Ten thousand spoiled messages: each is applied, or a dead letter with its reason and bytes; nothing crashes."""

from __future__ import annotations

import io
import logging
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import fastavro
import msgspec
import pytest

from streams.contract.findings import JobState
from streams.contract.plumbing import DeadLetter
from streams.contract.schemas import latest
from streams.contract.topics import BY_NAME, DEAD_LETTERS, EPISODES, INCIDENTS, JOB_SLICES, JOB_STATES
from streams.contract.wire import Decoder
from streams.kafka_log import LogMessage
from tests.contract.examples import EXAMPLES
from tests.streams.memory_log import MemoryLog
from tests.streams.simulated import demo_messages

SPOILED = 10_000
PARTITIONS = 2
SEED = 20_261_130
ABSURD_NUMBERS = (-1, 0, 1, 2**16, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
ABSURD_TEXTS = ("", "\x00", "x" * 5000, "\u202e", "a/b/c", "-1")
READ_LETTER = Decoder(DEAD_LETTERS)


def flipped(value: bytes, rng: random.Random) -> bytes:
    spoiled = bytearray(value)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        spoiled[rng.randrange(len(spoiled))] ^= 1 << rng.randrange(8)
    return bytes(spoiled)


def cut(value: bytes, rng: random.Random) -> bytes:
    return value[: rng.randrange(len(value))]


def lengthened(value: bytes, rng: random.Random) -> bytes:
    return value + rng.randbytes(rng.randrange(1, 20))


def under_another_id(value: bytes, rng: random.Random) -> bytes:
    return value[:1] + rng.choice((rng.randbytes(4), b"\0\0\0\x07", b"\0\0\0\0")) + value[5:]


def stirred(value: bytes, rng: random.Random) -> bytes:
    start, length = rng.randrange(5, len(value)), rng.randrange(1, 40)
    return value[:start] + rng.randbytes(length) + value[start + length :]


SPOILERS = (flipped, cut, lengthened, under_another_id, stirred)


def absurd(topic: str, value: bytes, rng: random.Random) -> bytes:
    """Valid Avro of the right schema, one to three of its leaves beyond reason."""
    fields: Any = msgspec.to_builtins(Decoder(BY_NAME[topic])(value), builtin_types=(bytes,))
    for _ in range(rng.randrange(1, 4)):
        _spoil_leaf(fields, rng)
    out = io.BytesIO()
    out.write(value[:5])
    fastavro.schemaless_writer(out, latest(topic).parsed, fields)
    return out.getvalue()


def _spoil_leaf(node: Any, rng: random.Random) -> None:
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        child = node[key]
        if isinstance(child, (dict, list)) and child and rng.random() < 0.9:
            node = child
            continue
        match child:
            case bool():
                node[key] = not child
            case int():
                node[key] = rng.choice(ABSURD_NUMBERS)
            case str() if key not in {"source", "verdict", "kind", "health", "status", "rung", "bytes_rung"}:
                node[key] = child if str(key).endswith("_source") else rng.choice(ABSURD_TEXTS)
            case bytes():
                node[key] = rng.choice((b"", child[:-1], child + child, rng.randbytes(len(child)), child[4:]))
            case list() if child:
                node[key] = rng.choice(([], child * 3, child[:-1]))
        return


def spoil(message: LogMessage, rng: random.Random) -> LogMessage:
    value = message.value
    assert value is not None
    kind = rng.random()
    if kind < 0.1:  # Swapped topics
        topic = rng.choice([t for t in CONSUMED if t != message.topic])
        return replace(message, topic=topic, partition=message.partition % BY_NAME[topic].partitions(PARTITIONS))
    if kind < 0.5:
        return replace(message, value=absurd(message.topic, value, rng))
    if kind < 0.51:
        return replace(message, value=None)
    return replace(message, value=rng.choice(SPOILERS)(value, rng))


CONSUMED = ("nic-counters", "nccl-throughput", "node-pods", "job-slices", "episodes", "job-states")


def honest_rounds() -> Iterator[tuple[MemoryLog, LogMessage, int]]:
    """(a log, the message that comes next in it, how many spoiled ones come before it), over many fresh logs.

    Half of the rounds spoil inputs as they come, half what the steps send each other. Every message is new to its
    log, so that nothing is passed over as already known; before each round the log has seen honest seconds.
    """
    clean = MemoryLog(PARTITIONS)
    inputs = list(demo_messages(40, PARTITIONS))
    for message in inputs:
        clean.put(message)
    slices = clean.sent[JOB_SLICES.name]
    episode = _encoded(EXAMPLES["episodes", "confirmed"])
    findings = [
        *clean.sent[JOB_STATES.name],
        *([LogMessage(topic="episodes", partition=0, offset=0, value=episode)] * 50),
    ]
    for _ in range(100):
        for stream, warm in ((inputs, len(inputs) // 2), (slices, len(slices) // 2), (findings, 0)):
            log = MemoryLog(PARTITIONS)
            for message in stream[:warm]:
                log.put(message)
            for message in stream[warm:]:
                yield log, message, 1 if stream is slices else 2
                log.put(message)


def _encoded(record: msgspec.Struct) -> bytes:
    out = io.BytesIO()
    schema = latest(EPISODES.name)
    out.write(b"\0" + schema.packaged_id.to_bytes(4, "big"))
    fastavro.schemaless_writer(out, schema.parsed, msgspec.to_builtins(record, builtin_types=(bytes,)))
    return out.getvalue()


@pytest.mark.timeout(280)
def test_each_of_ten_thousand_spoiled_messages_is_applied_or_a_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="streams.flow")
    rng = random.Random(SEED)
    outcomes: Counter[str] = Counter()
    internal: list[str] = []

    def put(log: MemoryLog, message: LogMessage) -> None:
        spoiled = spoil(message, rng)
        letters = [cast(DeadLetter, READ_LETTER(sent.value)) for sent in log.put(spoiled)]
        own = [found for found in letters if found.topic == spoiled.topic]
        outcomes["dead letter" if own else "applied"] += 1
        for letter in own:
            assert letter.reason
            assert (letter.key, letter.value) == (spoiled.key, spoiled.value)
        internal.extend(found.reason for found in letters if " failed: " in found.reason)

    rounds = honest_rounds()
    while outcomes.total() < SPOILED:
        log, message, times = next(rounds)
        for _ in range(times):
            put(log, message)

    assert internal == [], f"{len(internal)} records upset the core: {Counter(internal).most_common(5)}"
    assert outcomes.total() >= SPOILED
    assert outcomes["dead letter"] > SPOILED // 3, outcomes
    print(f"{outcomes.total()} spoiled messages: {dict(outcomes)}")


def test_spoiled_messages_between_honest_ones_leave_the_findings_as_they_were() -> None:
    """What is refused must have changed nothing."""
    rng = random.Random(SEED)
    clean, dirty = MemoryLog(PARTITIONS), MemoryLog(PARTITIONS)
    for message in demo_messages(40, PARTITIONS):
        clean.put(message)
        value = message.value or b""
        for broken in (cut(value, rng), under_another_id(value, rng), lengthened(value, rng)):
            assert dirty.put(replace(message, value=broken))
        dirty.put(message)

    for topic in (JOB_SLICES, JOB_STATES, EPISODES, INCIDENTS):
        assert [m.value for m in dirty.sent[topic.name]] == [m.value for m in clean.sent[topic.name]]
    assert any(isinstance(Decoder(JOB_STATES)(m.value), JobState) for m in clean.sent[JOB_STATES.name])
