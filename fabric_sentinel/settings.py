"""Every setting, typed, read once: from one TOML file and from `FABRIC_SENTINEL_…` environment variables."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

ENV_PREFIX = "FABRIC_SENTINEL_"
FILE_VARIABLE = "FABRIC_SENTINEL_CONFIG"
MASK = "********"

Port = Annotated[int, Field(ge=0, le=65535)]


class SettingsError(Exception):
    """A setting that stops the start: one line that names the key, the value and what to do."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Kafka(_Section):
    """Where Kafka is and how to reach it; the same for every client."""

    bootstrap: str = Field("127.0.0.1:9092", description="Brokers, host:port, comma-separated")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="Use SASL_SSL outside one machine"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="Only with SASL"
    )
    sasl_username: str | None = Field(None, description="Only with SASL")
    sasl_password: SecretStr | None = Field(None, description="Only with SASL; prefer sasl_password_file")
    sasl_password_file: Path | None = Field(None, description="A file that holds the password alone")
    ssl_ca_file: Path | None = Field(None, description="PEM of the authority that signed the brokers")
    ssl_certificate_file: Path | None = Field(None, description="PEM of our own certificate, for mutual TLS")
    ssl_key_file: Path | None = Field(None, description="PEM of its key")

    def password(self) -> str | None:
        """The password from its file if one is named, else from the setting."""
        if self.sasl_password_file is not None:
            return self.sasl_password_file.read_text(encoding="utf-8").strip()
        return None if self.sasl_password is None else self.sasl_password.get_secret_value()


class Topics(_Section):
    """The topics' shape; changing the partition count means new topics and a drained cut-over."""

    partitions: int = Field(32, ge=1, le=1024, description="Of each input and slice topic; the worker refuses others")
    replication: int = Field(3, ge=1, le=9, description="Copies of each partition; 1 only on a laptop")
    registry_url: str | None = Field(None, description="Schema Registry; without one, packaged schema ids travel")


class Agent(_Section):
    """The node agent."""

    node: str | None = Field(None, description="Node name; default: the host name")
    flush_ticks: int = Field(5, ge=1, le=50, description="Ticks of 100 ms in one record")
    buffer_bytes: int = Field(64 << 20, ge=1 << 20, description="Newest records kept while Kafka is away")
    sysfs: Path = Field(Path("/sys"), description="Where the host's /sys is mounted")
    proc: Path = Field(Path("/proc"), description="Where the host's /proc is mounted")
    cgroup: Path = Field(Path("/sys/fs/cgroup"), description="Where the host's cgroup2 tree is mounted")
    port_capacity_mbps: dict[str, int] = Field({}, description="device/port to capacity, where the rate says too much")
    nccl_libraries: list[Path] = Field([], description="libnccl files to probe before anybody maps them")
    rdma_probes: bool = Field(True, description="Kernel probes on RDMA objects (needs CAP_BPF, CAP_PERFMON)")
    nccl_probes: bool = Field(True, description="User probes on libnccl")
    metrics_host: str = Field("127.0.0.1", description="Bind address of the metrics; 0.0.0.0 in a pod of its own")
    metrics_port: Port = Field(9466, description="Prometheus metrics; 0: none")


class Pods(_Section):
    """The pod watcher."""

    file: Path | None = Field(None, description="A file of nodes and pods, reread on change")
    metrics_host: str = Field("127.0.0.1", description="Bind address of the metrics; 0.0.0.0 in a pod of its own")
    metrics_port: Port = Field(9469, description="Prometheus metrics; 0: none")


class Stream(_Section):
    """The stream app and its detector."""

    node_silent_ticks: int = Field(30, ge=5, description="A node this far behind its partition's clock is silent")
    metrics_host: str = Field("127.0.0.1", description="Bind address of the metrics; 0.0.0.0 in a pod of its own")
    metrics_port: Port = Field(9467, description="Prometheus metrics; 0: none")


class ClickHouse(_Section):
    """The ClickHouse sink."""

    dsn: SecretStr | None = Field(
        None,
        description="chdb:///PATH: the engine in process; http(s)://user:password@host:port/database: a server; "
        "default: in process, at ./.fabric-sentinel/clickhouse",
    )
    batch_messages: int = Field(5_000, ge=1, description="Messages of one partition in one insert at the most")
    sample_seconds: float = Field(5.0, gt=0, description="Samples wait this long at the most: few large inserts")
    finding_seconds: float = Field(0.5, gt=0, description="Findings wait this long at the most: people wait for them")

    @field_validator("dsn")
    @classmethod
    def _known(cls, value: SecretStr | None) -> SecretStr | None:
        schemes = ("chdb://", "http://", "https://", "clickhouse://", "clickhouses://")
        if value is not None and not value.get_secret_value().startswith(schemes):
            raise ValueError(f"begins with none of {', '.join(schemes)}")
        return value


class Prometheus(_Section):
    """The Prometheus exporter of findings."""

    host: str = Field("127.0.0.1", description="Bind address")
    port: Port = Field(9468, description="Port of /metrics")


class Settings(_Section):
    """Everything that can be set."""

    cluster: str = Field("local", min_length=1, description="Name of this cluster, on every record")
    log_format: Literal["auto", "json", "console"] = Field("auto", description="auto: console on a terminal, else JSON")
    kafka: Kafka = Kafka()
    topics: Topics = Topics()
    agent: Agent = Agent()
    pods: Pods = Pods()
    stream: Stream = Stream()
    clickhouse: ClickHouse = ClickHouse()
    prometheus: Prometheus = Prometheus()

    SECTIONS: ClassVar[tuple[str, ...]] = ("kafka", "topics", "agent", "pods", "stream", "clickhouse", "prometheus")

    @field_validator("cluster")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not all(letter.isalnum() or letter in "._-" for letter in value):
            raise ValueError("use letters, digits, dots, dashes and underscores")
        return value


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """The settings; environment beats file, `overrides` (dotted keys, from the command line) beat both.

    Raises SettingsError with one line that names the key, the value and the fix.
    """
    env = os.environ if environment is None else environment
    named = file or (Path(env[FILE_VARIABLE]) if env.get(FILE_VARIABLE) else None)
    values = _from_file(named) if named else {}
    origins: dict[str, str] = {}
    for variable, text in sorted(env.items()):
        if variable.startswith(ENV_PREFIX) and variable != FILE_VARIABLE:
            key = _key_of(variable)
            _put(values, key, _value_of(key, variable, text))
            origins[key] = variable
    for key, value in (overrides or {}).items():
        if value is not None:
            _put(values, key, value)
            origins[key] = "the command line"
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_one_line(error, origins, named)) from error


def describe(settings: Settings) -> dict[str, object]:
    """Dotted keys to values as they may be printed: secrets are masked."""
    flat: dict[str, object] = {}
    for name, value in settings:
        if isinstance(value, _Section):
            flat |= {f"{name}.{inner}": _shown(inner_value) for inner, inner_value in value}
        else:
            flat[name] = _shown(value)
    return flat


def reference() -> list[tuple[str, str, str, str]]:
    """(key, environment variable, default, what it is) of every setting, for the docs."""
    rows = []
    defaults = describe(Settings())
    for name, field in Settings.model_fields.items():
        section = field.annotation if name in Settings.SECTIONS else None
        inner = section.model_fields.items() if isinstance(section, type) and issubclass(section, _Section) else ()
        for leaf, leaf_field in inner:
            key = f"{name}.{leaf}"
            rows.append((key, variable_of(key), str(defaults[key]), leaf_field.description or ""))
        if section is None:
            rows.append((name, variable_of(name), str(defaults[name]), field.description or ""))
    return rows


def variable_of(key: str) -> str:
    """The environment variable of a dotted key: `kafka.bootstrap` is FABRIC_SENTINEL_KAFKA__BOOTSTRAP."""
    return ENV_PREFIX + key.replace(".", "__").upper()


def _key_of(variable: str) -> str:
    return variable.removeprefix(ENV_PREFIX).lower().replace("__", ".")


def _value_of(key: str, variable: str, text: str) -> object:
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{key} (from {variable}) looks like JSON but is none: {error}") from error


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(f"configuration file {path} does not exist; correct --config or {FILE_VARIABLE}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"configuration file {path} cannot be read as TOML: {error}") from error


def _put(values: dict[str, Any], key: str, value: object) -> None:
    *path, leaf = key.split(".")
    for part in path:
        values = values.setdefault(part, {})
    values[leaf] = value


def _shown(value: object) -> object:
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        return text if text.startswith("chdb://") else MASK
    return str(value) if isinstance(value, Path) else value


def _one_line(error: ValidationError, origins: Mapping[str, str], file: Path | None) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    named = next((origin for known, origin in origins.items() if known == key or known.startswith(f"{key}.")), None)
    where = named or (str(file) if file else "the settings")
    if first["type"] == "extra_forbidden":
        return f"{key}: no such setting (from {where}); remove it, or see `fabric-sentinel settings` for all keys"
    secret = any(word in key for word in ("password", "dsn", "secret"))
    value = MASK if secret else repr(first["input"])
    problem = first["msg"].removeprefix("Value error, ")
    problem = problem[0].lower() + problem[1:]
    return f"{key} = {value} (from {where}): {problem}; set {key} or {variable_of(key)} to a valid value"
