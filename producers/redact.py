"""Replaces ids and names in explanations, each always by the same stand-in, so that reports can be shared."""

import re

_IDS = re.compile(
    r"(?P<pod>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})"
    r"|(?P<container>(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f]))"
    r"|(?P<static>(?:(?<=pod)|(?<![0-9a-f]))[0-9a-f]{32}(?![0-9a-f]))"
)

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Redactor:
    """One redactor per report: the same id or name gives the same stand-in everywhere in it."""

    def __init__(self) -> None:
        self._stand_ins: dict[tuple[str, str], str] = {}

    def name(self, kind: str, value: str) -> str:
        """The stand-in of a name of some kind (namespace, tenant, node …): "kind-1", "kind-2" …"""
        key = (kind, value)
        if key not in self._stand_ins:
            self._stand_ins[key] = f"{kind}-{1 + sum(known == kind for known, _ in self._stand_ins)}"
        return self._stand_ins[key]

    def text(self, text: str) -> str:
        """The text with every pod uid (in either spelling) and container id replaced."""
        return _IDS.sub(self._replace, text)

    def json(self, value: Json) -> Json:
        """The value with every string in it redacted; keys stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(one) for one in value]
        if isinstance(value, dict):
            return {key: self.json(one) for key, one in value.items()}
        return value

    def _replace(self, match: re.Match[str]) -> str:
        kind = "container" if match["container"] else "pod"
        return self.name(kind, match[0].replace("_", "-"))
