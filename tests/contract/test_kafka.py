"""TLS, SASL and keys reach every client the same way, and no secret is ever printed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from aiokafka.partitioner import murmur2
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from streams.contract.kafka import KafkaConnection, partition_of


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, crt = folder / "client.key", folder / "client.crt"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run([*command, "-keyout", key, "-out", crt, "-subj", "/CN=test"], check=True, capture_output=True)
    return crt, key


def test_without_security_only_addresses_are_set() -> None:
    assert KafkaConnection(bootstrap="a:1,b:2").confluent() == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "PLAINTEXT",
    }
    assert KafkaConnection(bootstrap="a:1").tls_context() is None
    assert KafkaConnection(bootstrap="a:1, b:2").broker_urls() == ["kafka://a:1", "kafka://b:2"]


def test_everything_that_is_set_reaches_librdkafka_which_accepts_it(certificate: tuple[Path, Path]) -> None:
    crt, key = certificate
    settings = KafkaConnection(
        bootstrap="127.0.0.1:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="me",
        sasl_password="hush",
        ssl_ca=crt,
        ssl_certificate=crt,
        ssl_key=key,
    ).confluent()

    assert settings == {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": "me",
        "sasl.password": "hush",
        "ssl.ca.location": str(crt),
        "ssl.certificate.location": str(crt),
        "ssl.key.location": str(key),
    }
    Producer({**settings, "log_level": 0})


def test_the_same_files_make_a_context_for_python_clients(certificate: tuple[Path, Path]) -> None:
    crt, key = certificate
    context = KafkaConnection(
        bootstrap="a:1", security_protocol="SSL", ssl_ca=crt, ssl_certificate=crt, ssl_key=key
    ).tls_context()
    assert context is not None
    assert [authority["subject"] for authority in context.get_ca_certs()] == [((("commonName", "test"),),)]


def test_secrets_are_never_shown() -> None:
    connection = KafkaConnection(
        bootstrap="a:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_username="me",
        sasl_password="hush-1",
        ssl_key_password="hush-2",
    )
    assert "hush" not in repr(connection)
    assert "hush" not in str(connection)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"bootstrap": ""}, "names no broker"),
        ({"bootstrap": "a:1", "security_protocol": "TLS"}, "security_protocol 'TLS'"),
        ({"bootstrap": "a:1", "security_protocol": "SASL_SSL"}, "needs sasl_username and sasl_password"),
        (
            {
                "bootstrap": "a:1",
                "security_protocol": "SASL_SSL",
                "sasl_username": "u",
                "sasl_password": "p",
                "sasl_mechanism": "GSSAPI",
            },
            "sasl_mechanism 'GSSAPI'",
        ),
        ({"bootstrap": "a:1", "ssl_certificate": Path("x")}, "go together"),
    ],
)
def test_a_connection_that_cannot_work_is_refused_at_once(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        KafkaConnection(**fields)  # type: ignore[arg-type]


@given(st.binary(max_size=64), st.integers(1, 200))
def test_keys_land_where_faust_and_java_put_them(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


def test_known_hashes_of_kafkas_own_tests() -> None:
    # org.apache.kafka.common.utils.UtilsTest.testMurmur2
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    for key, signed in known.items():
        assert partition_of(key, 1 << 31) == signed & 0x7FFFFFFF
