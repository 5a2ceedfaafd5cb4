"""From settings to what each component takes: the only place that knows both."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from fabric_sentinel.settings import Kafka, Settings, SettingsError
from streams.contract.kafka import KafkaConnection
from streams.contract.topics import ALL
from streams.contract.wire import SchemaIds
from streams.core.settings import CoreSettings, JoinSettings


def code_version() -> str:
    """The installed version of this package."""
    return version("fabric-sentinel")


def node_name(settings: Settings) -> str:
    """The node's name: set, or the host's."""
    return settings.agent.node or platform.node()


def connection(kafka: Kafka) -> KafkaConnection:
    """How every client reaches Kafka; raises SettingsError where the parts contradict each other."""
    try:
        return KafkaConnection(
            bootstrap=kafka.bootstrap,
            security_protocol=kafka.security_protocol,
            sasl_mechanism=kafka.sasl_mechanism,
            sasl_username=kafka.sasl_username,
            sasl_password=kafka.password(),
            ssl_ca=kafka.ssl_ca_file,
            ssl_certificate=kafka.ssl_certificate_file,
            ssl_key=kafka.ssl_key_file,
        )
    except OSError as error:
        raise SettingsError(
            f"kafka.sasl_password_file cannot be read: {error}; correct the path or its mode"
        ) from error
    except ValueError as error:
        raise SettingsError(f"kafka: {error}") from error


def core_settings(settings: Settings) -> CoreSettings:
    """What steers the detector."""
    return CoreSettings(join=JoinSettings(node_silent_ticks=settings.stream.node_silent_ticks))


def instance_name() -> str:
    """This process, as its health records name it."""
    return f"{platform.node()}:{os.getpid()}"


def registry(settings: Settings) -> SchemaIds | None:
    """The configured Schema Registry, or None where packaged ids suffice."""
    if settings.topics.registry_url is None:
        return None
    from streams.contract.registry import Registry

    return Registry(url=settings.topics.registry_url)


def store_dsn(settings: Settings) -> str:
    """Where ClickHouse is: as set, or the embedded engine under the folder we stand in."""
    if settings.clickhouse.dsn is not None:
        return settings.clickhouse.dsn.get_secret_value()
    return f"chdb://{Path.cwd() / '.fabric-sentinel' / 'clickhouse'}"


def registered_ids(settings: Settings) -> Mapping[str, int] | None:
    """Register our schemas where a registry is configured, and return the ids to write under."""
    from streams.contract.registry import Registry, register_all

    where = registry(settings)
    return register_all(where, ALL) if isinstance(where, Registry) else None
