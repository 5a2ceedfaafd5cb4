"""What the victim measured itself: its steps, and its loss over a stretch of time."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of the job, in epoch seconds."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A stretch of the guest's script."""

    name: str
    start_s: float
    end_s: float


def read_steps(folder: Path) -> list[Step]:
    lines = [json.loads(line) for line in (folder / "victim").read_text().splitlines()[1:]]
    return [Step(start_s=line["start_s"], end_s=line["end_s"]) for line in lines]


def read_scenes(folder: Path) -> list[Scene]:
    lines = [json.loads(line) for line in (folder / "scenes").read_text().splitlines()]
    return [Scene(name=line["scene"], start_s=line["start_s"], end_s=line["end_s"]) for line in lines]


def scene(folder: Path, name: str) -> Scene:
    (found,) = [one for one in read_scenes(folder) if one.name == name]
    return found


def mean_step_s(steps: list[Step], start_s: float, end_s: float) -> float:
    """The mean length of the steps that lie wholly in a stretch."""
    return fmean(step.seconds for step in steps if step.start_s >= start_s and step.end_s <= end_s)


def median_step_s(steps: list[Step], start_s: float, end_s: float) -> float:
    """The median length of the steps that lie wholly in a stretch: it does not see single stumbles."""
    return median(step.seconds for step in steps if step.start_s >= start_s and step.end_s <= end_s)


def loss(steps: list[Step], start_s: float, end_s: float, *, baseline_s: float) -> float:
    """The fraction of its own speed that the job lost in a stretch, against a baseline's mean step."""
    return 1 - baseline_s / mean_step_s(steps, start_s, end_s)
