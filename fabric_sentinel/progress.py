"""Progress on stderr while a person waits; silence where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def counting(what: str, *, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that hears (done, total); it vanishes at the end."""
    console = Console(file=sys.stderr)
    columns = (TextColumn(f"{what} {unit}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def hear(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield hear
