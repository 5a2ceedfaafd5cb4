"""Identities made from content alone, so that a replay makes the same ones."""

from __future__ import annotations

import uuid

_NAMESPACE = uuid.UUID("6f1d7a52-0f0b-5a4e-9c0e-5f3ab9b2c001")


def episode_id(*, cluster: str, job: str, job_epoch: int, alarm_tick: int) -> str:
    """One job's slowdown, named by the tick at which the alarm fired; what is refined later never changes it."""
    return str(uuid.uuid5(_NAMESPACE, f"episode|{cluster}|{job}|{job_epoch}|{alarm_tick}"))


def charge_id(*, cluster: str, job: str, minute: int, cause_pod_uid: str) -> str:
    """One minute of one job's loss, moved to one pod's tenant."""
    return str(uuid.uuid5(_NAMESPACE, f"charge|{cluster}|{job}|{minute}|{cause_pod_uid}"))
