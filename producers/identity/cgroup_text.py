"""Reads a pod's uid and container from cgroup paths, whatever the version, driver, runtime or nesting."""

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

_CGROUP_LINE = re.compile(r"\d+:[^:]*:(?P<path>.*)")
_MOUNTINFO_LINE = re.compile(r"\d+ \d+ \d+:\d+ (?P<path>/\S*) /\S* .* - cgroup2? .*")
_DELETED = " (deleted)"

# "pod<uid>" (cgroupfs driver) or "<head>-pod<uid>.slice" (systemd driver; real kubelets write the uid's dashes
# as underscores). A static pod's uid is a 32-digit hash. Anything else counts only below "kubepods".
_POD = re.compile(
    r"(?:(?P<head>.+)-)?pod(?:"
    r"(?P<uid>[0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})|(?P<odd>[0-9a-f]+))(?:\.slice)?",
    re.IGNORECASE,
)
_CONTAINER = re.compile(r"(?:(?P<runtime>[a-z][a-z0-9-]*?)[-_:])?(?P<id>[0-9a-f]{64})(?:\.scope)?")
_RUNTIME_PREFIX = re.compile(r"(?P<runtime>cri-containerd|crio|docker|libpod|kata)[-_:]")
_RUNTIMES = {"cri-containerd": "containerd", "libpod": "podman", "libpod_parent": "podman", "crio-conmon": "crio"}
_SERVICE_RUNTIMES = {"docker.service": "docker", "containerd.service": "containerd", "crio.service": "crio"}
_QOS = ("besteffort", "burstable")


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupIdentity:
    """Whose cgroup it is; `qos` is besteffort, burstable or guaranteed. None is unknown.

    A static pod's uid is its configuration's hash, which the API keeps in an annotation. A Kata container's
    id is its sandbox's. Only Kata's overhead cgroup has an identity without a pod uid.
    """

    pod_uid: str | None
    container_id: str | None
    runtime: str | None
    qos: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupReading:
    """What a cgroup text says: the pod, or that lines disagree, or a container outside Kubernetes."""

    identity: CgroupIdentity | None
    ambiguous: bool
    container_id: str | None
    container_runtime: str | None


def read_cgroup(text: str) -> CgroupReading:
    """Understand /proc/PID/cgroup, a bare cgroup path, or (only without those) lines of mountinfo.

    Every line counts: a hybrid host names the pod in some hierarchies and a service in others. Lines that
    name two pods or two containers are ambiguous, and then nobody is named.
    """
    paths = cgroup_paths(text)
    found = {identity for path in paths if (identity := _pod_of(path.split("/"))) is not None}
    container_id, container_runtime = _outside_container(paths)
    identity, ambiguous = _merged(found)
    if identity is None and not ambiguous:
        identity = _kata_overhead(paths)
    return CgroupReading(
        identity=identity,
        ambiguous=ambiguous,
        container_id=container_id,
        container_runtime=container_runtime,
    )


def cgroup_paths(text: str) -> tuple[str, ...]:
    """The distinct paths of a cgroup text, in order."""
    paths: list[str] = []
    mounted: list[str] = []
    for line in text.splitlines():
        stripped = line.strip().removesuffix(_DELETED)
        if match := _CGROUP_LINE.fullmatch(stripped):
            paths.append(match["path"])
        elif match := _MOUNTINFO_LINE.fullmatch(stripped):
            mounted.append(match["path"])
        elif stripped.startswith("/"):
            paths.append(stripped)
    return tuple(dict.fromkeys(paths or mounted))


def unified_path(text: str) -> str | None:
    """The path of the cgroup2 hierarchy (the "0::" line) in a /proc/PID/cgroup text."""
    for line in text.splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::").strip().removesuffix(_DELETED)
    return None


def _pod_of(components: list[str]) -> CgroupIdentity | None:
    """The identity in one path: the outermost pod (the one the API knows) and the first container below it."""
    for at, component in enumerate(components):
        name, *inside = component.split(":", 1)  # "<pod>.slice:cri-containerd:<id>" is one component
        match = _POD.fullmatch(name)
        if match is None or not (match["uid"] or _below_kubepods(components[: at + 1])):
            continue
        above = components[:at]
        container_id, runtime = _container_of([*inside, *components[at + 1 :]][:1])
        return CgroupIdentity(
            pod_uid=(match["uid"] or match["odd"]).lower().replace("_", "-"),
            container_id=container_id,
            runtime=runtime or _service_runtime(above),
            qos=_qos_of(match["head"], above),
        )
    return None


def _below_kubepods(components: Iterable[str]) -> bool:
    return any("kubepods" in component for component in components)


def _container_of(components: list[str]) -> tuple[str | None, str | None]:
    """Container id and runtime of the component right below the pod's; a .mount unit is no container."""
    for component in components:
        if match := _CONTAINER.fullmatch(component):
            return match["id"], _runtime(match["runtime"])
        if match := _RUNTIME_PREFIX.match(component):
            return None, _runtime(match["runtime"])
    return None, None


def _runtime(prefix: str | None) -> str | None:
    return None if prefix is None else _RUNTIMES.get(prefix, prefix)


def _service_runtime(above: list[str]) -> str | None:
    """The runtime whose own service holds the pod's cgroup (the two cgroup drivers did not match)."""
    return next((_SERVICE_RUNTIMES[name] for name in reversed(above) if name in _SERVICE_RUNTIMES), None)


def _qos_of(head: str | None, above: list[str]) -> str | None:
    place = (head if head is not None else above[-1] if above else "").lower()
    for qos in _QOS:
        if place == qos or place.endswith(f"-{qos}"):
            return qos
    if place.removesuffix(".slice").endswith("kubepods"):
        return "guaranteed"
    return None


def _merged(found: set[CgroupIdentity]) -> tuple[CgroupIdentity | None, bool]:
    """One identity out of those of all lines; lines complete each other, and must not disagree."""
    if not found:
        return None, False
    pods = {one.pod_uid for one in found}
    containers = {one.container_id for one in found} - {None}
    if len(pods) > 1 or len(containers) > 1:
        return None, True
    first = sorted(found, key=repr)
    merged = replace(
        first[0],
        container_id=next(iter(containers), None),
        runtime=next((one.runtime for one in first if one.runtime), None),
        qos=next((one.qos for one in first if one.qos), None),
    )
    return merged, False


def _kata_overhead(paths: Iterable[str]) -> CgroupIdentity | None:
    """QEMU, which holds a Kata pod's devices, sits outside kubepods: only the sandbox's id is known."""
    for path in paths:
        components = path.split("/")
        for parent, component in itertools.pairwise(components):
            if parent == "kata_overhead" and (match := _CONTAINER.fullmatch(component)):
                return CgroupIdentity(pod_uid=None, container_id=match["id"], runtime="kata", qos=None)
    return None


def _outside_container(paths: Iterable[str]) -> tuple[str | None, str | None]:
    """Id and runtime of the innermost container in the first path that has one."""
    for path in paths:
        components = path.split("/")
        for at in range(len(components) - 1, -1, -1):
            if match := _CONTAINER.fullmatch(components[at]):
                parent = components[at - 1] if at and components[at - 1] in ("docker", "libpod_parent") else None
                return match["id"], _runtime(match["runtime"] or parent)
    return None, None
