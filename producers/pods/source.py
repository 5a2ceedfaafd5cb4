"""What a source of pods gives: the whole list whenever it changes, or what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from streams.contract.inputs import Container, JobRef, NodeFacts, Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPod:
    """A pod that exists now; None is unknown."""

    pod_uid: str
    namespace: str
    name: str
    node: str
    since_tick: int | None = None
    tenant: str | None = None
    job: JobRef | None = None
    gpus: int | None = None
    containers: tuple[Container, ...] = ()
    qos: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def pod(self, *, valid_from_tick: int, valid_to_tick: int | None) -> Pod:
        """The contract's pod, with the time in which it holds."""
        return Pod(
            pod_uid=self.pod_uid,
            namespace=self.namespace,
            name=self.name,
            tenant=self.tenant,
            job=self.job,
            gpus=self.gpus,
            containers=list(self.containers),
            qos=self.qos,
            labels=dict(self.labels),
            valid_from_tick=valid_from_tick,
            valid_to_tick=valid_to_tick,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All pods that exist now, and what is known of their nodes."""

    pods: tuple[ListedPod, ...] = ()
    facts: Mapping[str, NodeFacts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A new list or None where nothing changed, and what is wrong right now or None."""

    listing: Listing | None = None
    problem: str | None = None


class PodSource(Protocol):
    """Where pods come from: a file, or the Kubernetes API."""

    def read(self) -> Reading:
        """What is new; called about once a second, must not wait long."""
        ...
