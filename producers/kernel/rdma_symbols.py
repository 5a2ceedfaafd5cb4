"""Which kernel function to probe: names looked up in the running kernel, compiler clones told apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

# Clang's LTO adds a suffix and leaves the arguments alone. GCC's clones drop, split or replace arguments, or hold only
# a part of the function: a probe that reads arguments would read wrong ones without any error.
SAME_ARGUMENTS = (".llvm.",)
OTHER_ARGUMENTS = (".isra.", ".constprop.", ".part.", ".cold")


class SymbolUnavailable(Exception):  # noqa: N818
    """No function under this name can be probed; the message is one line, fit for a gap."""


def read_functions(names: Iterable[str], kallsyms: Path = Path("/proc/kallsyms")) -> dict[str, list[str]]:
    """For each wanted name, the functions of the running kernel that carry it, alone or with a compiler's suffix."""
    found: dict[str, list[str]] = {name: [] for name in names}
    with kallsyms.open() as lines:
        for line in lines:
            _address, kind, symbol = line.split(maxsplit=3)[:3]
            if kind in "tTwW" and (function := symbol.partition(".")[0]) in found:
                found[function].append(symbol)
    return found


def probe_symbol(functions: Mapping[str, list[str]], name: str) -> str:
    """The symbol to attach to for `name`, with the arguments that its source has; raises SymbolUnavailable."""
    symbols = functions.get(name, [])
    if name in symbols:
        return name
    for symbol in symbols:
        if any(suffix in symbol for suffix in SAME_ARGUMENTS):
            return symbol
    clones = [symbol for symbol in symbols if any(suffix in symbol for suffix in OTHER_ARGUMENTS)]
    if clones:
        raise SymbolUnavailable(f"the kernel has only {clones[0]}, whose arguments are not those of {name}")
    raise SymbolUnavailable(f"the kernel has no function {name}")
