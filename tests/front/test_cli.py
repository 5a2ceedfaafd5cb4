"""The command line: helpful, one line for what is wrong, exit codes as documented."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fabric_sentinel.table import settings_markdown
from tests.paths import repo_root, shared


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fabric_sentinel", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=cwd,
        env={**os.environ, **environment},
    )


def test_help_teaches_the_first_minute_and_names_every_command() -> None:
    done = run("--help")

    assert done.returncode == 0
    assert "fabric-sentinel demo" in done.stdout
    for command in (
        "agent",
        "demo",
        "explain",
        "incidents",
        "pods",
        "record",
        "replay",
        "sink",
        "sql",
        "stream",
        "topics",
    ):
        assert f"\n  {command} " in done.stdout, command


def test_a_wrong_setting_stops_any_command_with_one_line_and_exit_code_2() -> None:
    done = run("stream", FABRIC_SENTINEL_TOPICS__PARTITIONS="none")

    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "topics.partitions = 'none'" in done.stderr


def test_replay_of_what_is_no_recording_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = run("replay", str(tmp_path), "--json")

    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_sql_without_a_store_says_so_in_one_line(tmp_path: Path) -> None:
    done = run("sql", "SELECT 1", cwd=tmp_path)

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "nothing has been written there yet" in done.stderr


def test_explain_prints_one_json_line_a_file_in_order(tmp_path: Path) -> None:
    pod = tmp_path / "pod"
    pod.write_text(
        "0::/kubepods.slice/kubepods-pod0c9f7a44_2d4e_4b8d_9d43_6d1f0a1b2c3d.slice/cri-containerd-"
        + "a" * 64
        + ".scope\n"
    )
    nobody = tmp_path / "nobody"
    nobody.write_text("0::/init.scope\n")

    done = run("explain", "cgroup", str(pod), str(nobody), "--json")

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["input"] for line in lines] == [str(pod), str(nobody)]
    assert lines[0]["understood"]["pod_uid"] == "0c9f7a44-2d4e-4b8d-9d43-6d1f0a1b2c3d"
    assert lines[1]["understood"] is None
    assert done.returncode == 0


def test_an_input_that_cannot_be_read_has_a_reason_and_exit_code_1(tmp_path: Path) -> None:
    done = run("explain", "cgroup", str(tmp_path / "absent"), "--json")

    line = json.loads(done.stdout)
    assert line["understood"] is None
    assert "cannot be read" in line["notes"][0]
    assert done.returncode == 1


def test_the_settings_page_is_what_the_code_says() -> None:
    page = (repo_root() / "docs" / "configuration.md").read_text(encoding="utf-8")

    assert settings_markdown() in page, (
        "run: fabric-sentinel settings --markdown, and paste it into docs/configuration.md"
    )


@pytest.mark.parametrize("case", ["cgroup/index.json"])
def test_the_corpus_is_where_the_tests_look(case: str) -> None:
    assert shared("corpus", *case.split("/")).is_file()


def test_a_question_to_a_store_that_is_not_there_makes_none(tmp_path: Path) -> None:
    done = run("incidents", cwd=tmp_path)

    assert done.returncode == 1
    assert "nothing has been written there yet" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        done = run("schemas", "--port", str(taken.getsockname()[1]))

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "fabric-sentinel: a port is in use already; choose another, or 0 for none: see `fabric-sentinel settings`"
    ]


def test_an_address_of_no_store_stops_the_start_and_is_not_told() -> None:
    done = run("sink", "clickhouse", FABRIC_SENTINEL_CLICKHOUSE__DSN="ftp://me:hunter2@host")

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "begins with none of chdb://" in done.stderr
    assert "hunter2" not in done.stderr


def test_a_demo_that_could_not_record_does_not_begin(tmp_path: Path) -> None:
    there = tmp_path / "night"
    there.mkdir()

    done = run("demo", "--headless", "--data", str(tmp_path / "data"), "--record", str(there))

    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"fabric-sentinel: {there} exists: name a new folder with --record"]
