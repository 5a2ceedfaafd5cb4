"""Pods from a file, for clusters without Kubernetes, laptops and tests; reread when it changes.

YAML or JSON. Everything but a pod's uid, namespace, name and node may be left out; what is left out is unknown.

    nodes:
      - name: node-a
        gpu_model: NVIDIA H100 80GB HBM3
        gpu_hour_price: 2.50            # for one GPU and hour; left out: losses have no price
        currency: USD
        price_source: rates of 2026-11  # told beside every amount
        labels: {zone: a}
    pods:
      - uid: 0f7c3c0e-7a3b-4d0e-9d5a-2f6f0e7c1a11
        namespace: team-llm
        name: pretrain-worker-0
        node: node-a
        since: 2026-11-30T09:00:00Z     # left out: when this pod was first listed
        tenant: team-llm
        job: {kind: PyTorchJob, name: pretrain, gpus_total: 16}   # or key: team-llm/PyTorchJob/pretrain
        gpus: 8
        qos: Guaranteed
        containers: [{id: 3f1c..., name: main}]
        labels: {app: pretrain}

A pod that is no longer listed has ended. Aliases, anchors and several documents in one file are not read.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path

from producers.pods.source import ListedPod, Listing, Reading
from producers.pods.yaml_fields import FieldError, Fields, parse
from streams.contract.inputs import Container, JobRef, NodeFacts
from streams.contract.ticks import tick_of_us

MAX_FILE_BYTES = 64 * 2**20  # some 100,000 pods
DEFAULT_PRICE_SOURCE = "pods file"
NODE_FIELDS = ("name", "gpu_model", "gpu_hour_price", "currency", "price_source", "labels")
POD_FIELDS = (
    "uid", "namespace", "name", "node", "since", "tenant", "job", "gpus", "qos", "containers", "labels",
)  # fmt: skip


class PodsFile:
    """A PodSource: the last good content holds while the file is missing or wrong."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._hash = b""
        self._problem: str | None = None

    def read(self) -> Reading:
        """The list if the file's content changed since the last call, and what is wrong with it."""
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return Reading(problem=self._problem)
            if status.st_size > MAX_FILE_BYTES:
                raise FieldError(f"{status.st_size} bytes are over the limit of {MAX_FILE_BYTES}")
            content = self._path.read_bytes()
        except (OSError, FieldError) as error:
            self._seen = None
            self._problem = f"{self._path}: {error.strerror if isinstance(error, OSError) else error}"
            return Reading(problem=self._problem)
        self._seen = seen
        return self._take(content)

    def _take(self, content: bytes) -> Reading:
        digest = hashlib.sha256(content).digest()
        if digest == self._hash:
            self._problem = None
            return Reading()
        try:
            listing = read_listing(content.decode())
        except (FieldError, UnicodeDecodeError) as error:
            self._problem = f"{self._path}: {error}"
            return Reading(problem=self._problem)
        self._hash, self._problem = digest, None
        return Reading(listing=listing)


def read_listing(text: str) -> Listing:
    """Nodes and pods of a document; raises FieldError naming line and field."""
    document = parse(text)
    facts: dict[str, NodeFacts] = {}
    for fields in document.list("nodes"):
        name = fields.required("name")
        if name in facts:
            raise fields.wrong("name", None, f"{name} is listed twice")
        facts[name] = _facts(fields)
    pods: dict[str, ListedPod] = {}
    for fields in document.list("pods"):
        pod = _pod(fields)
        if pod.pod_uid in pods:
            raise fields.wrong("uid", None, f"{pod.pod_uid} is listed twice")
        pods[pod.pod_uid] = pod
    document.done(("nodes", "pods"))
    return Listing(pods=tuple(pods.values()), facts=facts)


def _facts(fields: Fields) -> NodeFacts:
    price = fields.micros("gpu_hour_price")
    currency, source = fields.text("currency"), fields.text("price_source")
    if price is not None and currency is None:
        raise fields.wrong("currency", None, "is missing: a price needs one")
    facts = NodeFacts(
        gpu_model=fields.text("gpu_model"),
        gpu_hour_price_micros=price,
        currency=currency,
        price_source=None if price is None else source or DEFAULT_PRICE_SOURCE,
        labels=fields.texts("labels"),
    )
    fields.done(NODE_FIELDS)
    return facts


def _pod(fields: Fields) -> ListedPod:
    namespace = fields.required("namespace")
    pod = ListedPod(
        pod_uid=fields.required("uid"),
        namespace=namespace,
        name=fields.required("name"),
        node=fields.required("node"),
        since_tick=_tick(fields, "since"),
        tenant=fields.text("tenant"),
        job=_job(fields.fields("job"), namespace),
        gpus=fields.whole("gpus"),
        containers=tuple(_container(one, place) for place, one in enumerate(fields.list("containers"))),
        qos=fields.text("qos"),
        labels=fields.texts("labels"),
    )
    fields.done(POD_FIELDS)
    return pod


def _job(fields: Fields | None, namespace: str) -> JobRef | None:
    if fields is None:
        return None
    key, kind, name = fields.text("key"), fields.text("kind"), fields.text("name")
    if key is None and (kind is None or name is None):
        raise fields.wrong("key", None, "is missing: give key, or kind and name")
    job = JobRef(
        key=key or f"{namespace}/{kind}/{name}",
        kind=kind,
        name=name,
        owner_uid=fields.text("owner_uid"),
        gpus_total=fields.whole("gpus_total"),
    )
    fields.done(("key", "kind", "name", "owner_uid", "gpus_total"))
    return job


def _container(fields: Fields, place: int) -> Container:
    container_id = fields.required("id").rpartition("://")[2]  # kubectl shows containerd://<id>
    container = Container(container_id=container_id, name=fields.text("name") or f"container-{place}")
    fields.done(("id", "name"))
    return container


def _tick(fields: Fields, name: str) -> int | None:
    value = fields.text(name)
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise fields.wrong(name, None, f"{value!r} is not a time such as 2026-11-30T09:00:00Z") from error
    if moment.tzinfo is None:
        raise fields.wrong(name, None, f"{value!r} has no time zone; write Z for UTC")
    return tick_of_us(int(moment.timestamp() * 1_000_000))
