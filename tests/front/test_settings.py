"""Settings: typed, from file and environment, printed with secrets masked; a wrong one stops with one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabric_sentinel.settings import Settings, SettingsError, describe, load, reference, variable_of


def test_the_environment_beats_the_file_and_the_command_line_beats_both(tmp_path: Path) -> None:
    file = tmp_path / "sentinel.toml"
    file.write_text('cluster = "file"\n[topics]\npartitions = 4\nreplication = 1\n')
    environment = {"FABRIC_SENTINEL_TOPICS__PARTITIONS": "8", "FABRIC_SENTINEL_CLUSTER": "env"}

    settings = load(file=file, environment=environment, overrides={"cluster": "line"})

    assert (settings.cluster, settings.topics.partitions, settings.topics.replication) == ("line", 8, 1)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"FABRIC_SENTINEL_TOPICS__PARTITIONS": "many"}, ["topics.partitions = 'many'", "valid integer"]),
        ({"FABRIC_SENTINEL_TOPIX__PARTITIONS": "4"}, ["topix: no such setting", "FABRIC_SENTINEL_TOPIX__PARTITIONS"]),
        ({"FABRIC_SENTINEL_KAFKA__SECURITY_PROTOCOL": "ssl"}, ["kafka.security_protocol = 'ssl'", "'SASL_SSL'"]),
        ({"FABRIC_SENTINEL_CLUSTER": "a b"}, ["cluster = 'a b'", "letters, digits"]),
        ({"FABRIC_SENTINEL_CONFIG": "/nowhere.toml"}, ["/nowhere.toml does not exist"]),
        ({"FABRIC_SENTINEL_AGENT__PORT_CAPACITY_MBPS": "{oops"}, ["agent.port_capacity_mbps", "JSON"]),
    ],
)
def test_a_wrong_setting_is_one_line_with_key_value_and_fix(environment: dict[str, str], words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load(environment=environment)

    line = str(caught.value)
    assert "\n" not in line
    assert [word for word in words if word not in line] == []


def test_a_wrong_secret_is_not_told() -> None:
    with pytest.raises(SettingsError) as caught:
        load(environment={"FABRIC_SENTINEL_KAFKA__SASL_PASSWORD": '{"hunter": 2}'})

    assert "hunter" not in str(caught.value)
    assert "kafka.sasl_password" in str(caught.value)


def test_lists_and_tables_come_from_the_environment_as_json() -> None:
    settings = load(
        environment={
            "FABRIC_SENTINEL_AGENT__NCCL_LIBRARIES": '["/a/libnccl.so.2"]',
            "FABRIC_SENTINEL_AGENT__PORT_CAPACITY_MBPS": '{"mlx5_0/1": 400000}',
        }
    )

    assert settings.agent.nccl_libraries == [Path("/a/libnccl.so.2")]
    assert settings.agent.port_capacity_mbps == {"mlx5_0/1": 400_000}


def test_secrets_are_masked_where_settings_are_printed(tmp_path: Path) -> None:
    settings = load(
        environment={
            "FABRIC_SENTINEL_KAFKA__SASL_PASSWORD": "hunter2",
            "FABRIC_SENTINEL_CLICKHOUSE__DSN": "clickhouse://user:hunter2@db/x",
        }
    )

    assert "hunter2" not in str(describe(settings))
    assert "hunter2" not in repr(settings)
    assert settings.kafka.password() == "hunter2"


def test_a_password_comes_from_its_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("from-file\n")

    settings = load(environment={"FABRIC_SENTINEL_KAFKA__SASL_PASSWORD_FILE": str(secret)})

    assert settings.kafka.password() == "from-file"


def test_every_setting_has_a_description_and_a_working_variable() -> None:
    rows = reference()

    assert {key for key, *_ in rows} == set(describe(Settings()))
    assert [key for key, _, _, what in rows if not what] == []
    assert variable_of("kafka.bootstrap") == "FABRIC_SENTINEL_KAFKA__BOOTSTRAP"
