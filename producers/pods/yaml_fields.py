"""Fields of a YAML or JSON document with their lines, so that every complaint says where it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation

import yaml

_NULL, _INT, _STR = "tag:yaml.org,2002:null", "tag:yaml.org,2002:int", "tag:yaml.org,2002:str"


class FieldError(ValueError):
    """What is wrong and where: line and field."""


class Fields:
    """A mapping; each getter removes the field, and `done` refuses what nobody asked for."""

    def __init__(self, node: yaml.Node, path: str) -> None:
        self._path = path
        self._line = node.start_mark.line + 1
        if not isinstance(node, yaml.MappingNode):
            raise FieldError(f"line {self._line}: {path or 'the document'} must be a mapping of fields")
        self._nodes: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if key.value in self._nodes:
                raise FieldError(f"line {key.start_mark.line + 1}: {self._at(key.value)} is given twice")
            self._nodes[key.value] = value

    def text(self, name: str) -> str | None:
        """A scalar as it is written; None where absent, null or empty."""
        node = self._take(name)
        if node is None:
            return None
        if not isinstance(node, yaml.ScalarNode):
            raise self.wrong(name, node, "must be a single value")
        return node.value or None

    def required(self, name: str) -> str:
        """A scalar that must be there."""
        value = self.text(name)
        if value is None:
            raise FieldError(f"line {self._line}: {self._at(name)} is missing")
        return value

    def whole(self, name: str) -> int | None:
        """A whole number of at least 0."""
        node = self._nodes.get(name)
        value = self.text(name)
        if value is None or node is None:
            return None
        if not (value.isascii() and value.isdigit()):
            raise self.wrong(name, node, f"{value!r} is not a whole number of at least 0")
        return int(value)

    def micros(self, name: str) -> int | None:
        """A decimal number of at least 0, in millionths, rounded."""
        node = self._nodes.get(name)
        value = self.text(name)
        if value is None or node is None:
            return None
        try:
            number = Decimal(value)
        except InvalidOperation as error:
            raise self.wrong(name, node, f"{value!r} is not a number") from error
        if not number.is_finite() or number < 0:
            raise self.wrong(name, node, f"{value!r} is not a number of at least 0")
        return int((number * 1_000_000).to_integral_value())

    def texts(self, name: str) -> dict[str, str]:
        """A mapping of names to scalars; empty where absent."""
        node = self._take(name)
        if node is None:
            return {}
        inner = Fields(node, self._at(name))
        return {key: inner.text(key) or "" for key in list(inner._nodes)}

    def fields(self, name: str) -> Fields | None:
        """A mapping inside; None where absent."""
        node = self._take(name)
        return None if node is None else Fields(node, self._at(name))

    def list(self, name: str) -> Iterator[Fields]:
        """A list of mappings; empty where absent."""
        node = self._take(name)
        if node is None:
            return
        if not isinstance(node, yaml.SequenceNode):
            raise self.wrong(name, node, "must be a list")
        for place, item in enumerate(node.value):
            yield Fields(item, f"{self._at(name)}[{place}]")

    def done(self, known: Iterable[str]) -> None:
        """Refuse fields that no getter took, with the names that exist: a typo must not be silent."""
        for name, node in self._nodes.items():
            raise self.wrong(name, node, f"is not a field; there are {', '.join(known)}")

    def wrong(self, name: str, node: yaml.Node | None, what: str) -> FieldError:
        """An error at a field."""
        line = self._line if node is None else node.start_mark.line + 1
        return FieldError(f"line {line}: {self._at(name)} {what}")

    def _take(self, name: str) -> yaml.Node | None:
        node = self._nodes.pop(name, None)
        if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == _NULL):
            return None
        return node

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def parse(text: str) -> Fields:
    """The document's fields; raises FieldError with the line for anything that is not YAML or JSON."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise FieldError(f"{where}not YAML or JSON: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise FieldError(f"not YAML or JSON: {' '.join(str(error).split())}") from error
    if node is None:
        raise FieldError("the file is empty; a file without pods says `pods: []`")
    return Fields(node, "")
