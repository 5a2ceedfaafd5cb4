"""How every client reaches Kafka: the one place where addresses, TLS and SASL are turned into client settings."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

PARTITIONER = "murmur2_random"  # As Java and Faust; librdkafka's own default puts 289 of 300 keys elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """Where the brokers are, and how to speak to them; raises ValueError where the parts contradict each other."""

    bootstrap: str  # host:port, several separated by commas
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: SaslMechanism = "SCRAM-SHA-512"
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    ssl_ca: Path | None = None  # None: the system's trust store
    ssl_certificate: Path | None = None
    ssl_key: Path | None = None
    ssl_key_password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.bootstrap:
            raise ValueError("bootstrap names no broker: give host:port")
        if self.security_protocol not in get_args(SecurityProtocol):
            raise ValueError(f"security_protocol {self.security_protocol!r} is none of {get_args(SecurityProtocol)}")
        if self.uses_sasl and not (self.sasl_username and self.sasl_password):
            raise ValueError(f"{self.security_protocol} needs sasl_username and sasl_password")
        if self.uses_sasl and self.sasl_mechanism not in get_args(SaslMechanism):
            raise ValueError(f"sasl_mechanism {self.sasl_mechanism!r} is none of {get_args(SaslMechanism)}")
        if (self.ssl_certificate is None) != (self.ssl_key is None):
            raise ValueError("ssl_certificate and ssl_key go together")

    @property
    def uses_sasl(self) -> bool:
        """True where the broker asks for a user."""
        return self.security_protocol.startswith("SASL_")

    @property
    def uses_tls(self) -> bool:
        """True where the connection is encrypted."""
        return self.security_protocol.endswith("SSL")

    def confluent(self) -> dict[str, str]:
        """Settings for any confluent-kafka client; secrets included, so never log them."""
        settings = {"bootstrap.servers": self.bootstrap, "security.protocol": self.security_protocol}
        if self.uses_sasl:
            settings["sasl.mechanisms"] = self.sasl_mechanism
            settings["sasl.username"] = self.sasl_username or ""
            settings["sasl.password"] = self.sasl_password or ""
        if self.uses_tls:
            files = {
                "ssl.ca.location": self.ssl_ca,
                "ssl.certificate.location": self.ssl_certificate,
                "ssl.key.location": self.ssl_key,
            }
            settings |= {name: str(path) for name, path in files.items() if path is not None}
            if self.ssl_key_password:
                settings["ssl.key.password"] = self.ssl_key_password
        return settings

    def tls_context(self) -> ssl.SSLContext | None:
        """For clients in Python (aiokafka, and so Faust): None without TLS; raises OSError for unreadable files."""
        if not self.uses_tls:
            return None
        context = ssl.create_default_context(cafile=str(self.ssl_ca) if self.ssl_ca else None)
        if self.ssl_certificate is not None:
            context.load_cert_chain(self.ssl_certificate, self.ssl_key, self.ssl_key_password)
        return context

    def broker_urls(self) -> list[str]:
        """The brokers as Faust names them."""
        return [f"kafka://{server.strip()}" for server in self.bootstrap.split(",")]


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key under `murmur2`, as Java's, Faust's and our librdkafka producers choose it."""
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    """The 32-bit hash of org.apache.kafka.common.utils.Utils.murmur2."""
    multiplier, mask, length = 0x5BD1E995, 0xFFFFFFFF, len(data)
    mixed = 0x9747B28C ^ length
    for start in range(0, length - 3, 4):
        block = int.from_bytes(data[start : start + 4], "little") * multiplier & mask
        block = (block ^ (block >> 24)) * multiplier & mask
        mixed = (mixed * multiplier & mask) ^ block
    if tail := data[length & ~3 :]:
        mixed = (mixed ^ int.from_bytes(tail, "little")) * multiplier & mask
    mixed = (mixed ^ (mixed >> 13)) * multiplier & mask
    return mixed ^ (mixed >> 15)
