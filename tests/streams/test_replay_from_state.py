"""A recording that begins from a saved state goes on as if nothing had been interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.contract.findings import Incident
from streams.contract.plumbing import StateChunk
from streams.contract.topics import INPUTS
from streams.contract.wire import Decoder
from streams.core.core import Core, CoreSettings
from streams.recording import Recorder, RecordingError, RunInfo, read_state, write_state
from streams.replay import replay
from tests.streams.simulated import demo_messages

PARTITIONS = 2
RUN = RunInfo(version="test", cluster="c", partitions=PARTITIONS)


def chunks(state: bytes, size: int) -> list[StateChunk]:
    parts = [state[start : start + size] for start in range(0, len(state), size)]
    return [
        StateChunk(
            cluster="c",
            step="core",
            partition=0,
            owner=1,
            snapshot=1,
            chunk=number,
            chunks=len(parts),
            format=1,
            body=part,
        )
        for number, part in enumerate(parts)
    ]


def test_replayed_from_a_state_it_finds_what_an_uninterrupted_run_finds(tmp_path: Path) -> None:
    history = demo_messages(100, PARTITIONS)
    decoders = {topic.name: Decoder(topic) for topic in INPUTS}
    core = Core(CoreSettings(), PARTITIONS)
    half = len(history) // 2
    early: dict[str, Incident] = {}
    whole: dict[str, Incident] = {}
    state = b""
    for number, message in enumerate(history):
        if number == half:
            state, early = core.snapshot(), dict(whole)
        for finding in core.apply(message.topic, message.partition, decoders[message.topic](message.value)):  # type: ignore[arg-type]
            if isinstance(finding, Incident):
                whole[finding.incident_id] = finding
    with Recorder(tmp_path, RUN) as recorder:
        for message in history[half:]:
            recorder.write(message, decoders[message.topic](message.value))
    write_state(tmp_path, reversed(chunks(state, 10_000)))

    result = replay(tmp_path, CoreSettings())

    assert not result.cold_start
    assert {**early, **result.incidents} == whole
    assert any(incident.causes for incident in result.incidents.values())
    assert [result.incidents[key].revision > early[key].revision for key in early if key in result.incidents]


def test_without_a_state_it_begins_cold_and_says_so(tmp_path: Path) -> None:
    with Recorder(tmp_path, RUN):
        pass
    assert read_state(tmp_path) is None
    assert replay(tmp_path, CoreSettings()).cold_start


def test_a_state_that_cannot_be_read_stops_the_replay(tmp_path: Path) -> None:
    with Recorder(tmp_path, RUN):
        pass
    (tmp_path / "state.avro").write_bytes(b"rubbish")
    with pytest.raises(RecordingError, match=r"state\.avro cannot be read"):
        replay(tmp_path, CoreSettings())
