"""Prints the part of requirements.lock that one component's extra needs, hashes included, for a slim image.

Offline: the lock's own `# via` comments say who asked for what. Usage: component_lock.py EXTRA
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def wanted(pyproject: str, extra: str) -> set[str]:
    """Normalised names that the extra lists; raises KeyError for an extra that is not there."""
    lines = tomllib.loads(pyproject)["project"]["optional-dependencies"][extra]
    return {normal(re.split(r"[\s\[<>=!~;]", line, maxsplit=1)[0]) for line in lines}


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def blocks(lock: str) -> list[tuple[str, set[str], str]]:
    """(package, who asked for it, its lines) in the lock's order."""
    found = []
    for text in re.split(r"(?m)^(?=[A-Za-z0-9])", lock):
        if "==" not in text:
            continue
        parents = set(re.findall(r"(?m)^    #(?: via)?\s+([A-Za-z0-9._-]+)", text))
        found.append((normal(text.split("==")[0].strip()), {normal(parent) for parent in parents}, text))
    return found


def closure(names: set[str], lock: str) -> str:
    """The lines of `names` and of all that they need; raises KeyError naming what the lock lacks."""
    parts = blocks(lock)
    if absent := names - {name for name, _, _ in parts}:
        raise KeyError(f"not in the lock: {', '.join(sorted(absent))}")
    taken = set(names)
    while more := {name for name, parents, _ in parts if parents & taken} - taken:
        taken |= more
    return "".join(text for name, _, text in parts if name in taken)


if __name__ == "__main__":
    needed = wanted((ROOT / "pyproject.toml").read_text(), sys.argv[1])
    sys.stdout.write(closure(needed, (ROOT / "requirements.lock").read_text()))
