"""Rows as a table that a person can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table

from fabric_sentinel.settings import reference


def show_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], out: TextIO) -> None:
    """A table in a terminal; tab-separated elsewhere, so that cut and awk work."""
    if not out.isatty():
        for row in (columns, *rows):
            out.write("\t".join(map(str, row)) + "\n")
        return
    table = Table(*columns, box=box.SIMPLE_HEAD, highlight=True)
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    Console(file=out).print(table)


def settings_markdown() -> str:
    """The reference of all settings."""
    lines = ["| setting | variable | default | what it is |", "|---|---|---|---|"]
    lines += [f"| `{key}` | `{variable}` | `{default}` | {what} |" for key, variable, default, what in reference()]
    return "\n".join(lines)
