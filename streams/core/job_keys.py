"""Which job a process belongs to: fixed at its first communicator, the owner's word before anybody else's."""

from __future__ import annotations

from collections.abc import Sequence

from streams.contract.inputs import Communicator, Pod, Process


def process_id(process: Process) -> str:
    """A process's identity on its node; a pid alone comes back."""
    return f"{process.pid}:{process.started_us}"


def job_key(process: Process, pod: Pod | None, communicators: Sequence[Communicator], *, node: str) -> str:
    """The job's key: owner chain, else scheduler variables, else the largest communicator, else the pod."""
    if pod is not None and pod.job is not None:
        return pod.job.key
    scope = _scope(process, pod)
    if (hint := _hint(process.hints)) is not None:
        return scope + hint
    shared = [member for member in communicators if ":" not in member.comm]
    if shared:
        largest = min(shared, key=lambda member: (-(member.nranks or 0), member.comm))
        return f"{scope}comm:{largest.comm}"
    owner = f"{node}/{process.container_id or process.pid}"
    return f"pod:{process.pod_uid}" if process.pod_uid else owner


def _scope(process: Process, pod: Pod | None) -> str:
    """A prefix that keeps equal scheduler numbers of two tenants apart."""
    if pod is None:
        return "pod/" if process.pod_uid else ""
    return f"{pod.tenant or pod.namespace}/"


def _hint(hints: dict[str, str]) -> str | None:
    if number := hints.get("SLURM_JOB_ID"):
        return f"slurm:{number}"
    if (run := hints.get("TORCHELASTIC_RUN_ID")) and run != "none":  # torchrun's default is the word "none"
        return f"torchelastic:{run}"
    if (address := hints.get("MASTER_ADDR")) and (port := hints.get("MASTER_PORT")):
        return f"master:{address}:{port}"
    return None
