"""A node's pods as of a tick, chosen by the order of the node-pods log alone."""

from __future__ import annotations

import msgspec

from streams.contract.inputs import NodeFacts, Pod


class PodList(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a node's pods and the watcher clock that preceded it in the log."""

    after_clock: int
    pods: dict[str, Pod] = {}
    facts: NodeFacts = NodeFacts()


NO_PODS = PodList(after_clock=-1)


class PodHistory(msgspec.Struct, kw_only=True):
    """Versions in log order. A tick sees those written before the first clock that reaches it."""

    versions: list[PodList] = []

    def add(self, version: PodList, *, held: int) -> None:
        """Append a version; one that says nothing new is left out."""
        newest = self.versions[-1] if self.versions else NO_PODS
        if self.versions and newest.pods == version.pods and newest.facts == version.facts:
            return
        self.versions.append(version)
        del self.versions[:-held]

    def at(self, tick: int) -> PodList:
        """The version that holds at a tick; final once the watcher's clock has reached the tick."""
        for version in reversed(self.versions):
            if version.after_clock < tick:
                return version
        return NO_PODS

    def find(self, pod_uid: str, *, until_tick: int) -> Pod | None:
        """A pod in the first version that lists it and that `until_tick` can see."""
        for version in self.versions:
            if version.after_clock >= until_tick:
                break
            if (pod := version.pods.get(pod_uid)) is not None:
                return pod
        return None

    def forget_before(self, tick: int) -> None:
        """Drop versions that no later tick can see."""
        while len(self.versions) > 1 and self.versions[1].after_clock < tick:
            del self.versions[0]
