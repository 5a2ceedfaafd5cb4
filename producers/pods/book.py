"""Which pods are and were on each node, and since when: what the node-pods records say."""

from __future__ import annotations

from dataclasses import dataclass

from producers.pods.source import ListedPod, Listing
from streams.contract.inputs import NodeFacts, Pod

KEPT_TICKS = 36_000  # an ended pod stays an hour, so that a late judgement still finds its name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Life:
    listed: ListedPod
    valid_from_tick: int
    valid_to_tick: int | None = None

    @property
    def pod(self) -> Pod:
        return self.listed.pod(valid_from_tick=self.valid_from_tick, valid_to_tick=self.valid_to_tick)


class PodBook:
    """Takes listings in the order of time; pods of the first one are taken to be older than this watcher."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._facts: dict[str, NodeFacts] = {}
        self._is_first = True

    @property
    def nodes(self) -> list[str]:
        """Every node that has facts or pods, ended ones too."""
        return sorted({*self._facts, *(life.listed.node for life in self._lives.values())})

    def apply(self, listing: Listing, now_tick: int) -> set[str]:
        """Take a new list; returns the nodes whose record changed."""
        before = {node: (self.pods(node), self.facts(node)) for node in self.nodes}
        unseen_from_tick = now_tick - KEPT_TICKS if self._is_first else now_tick
        self._is_first = False
        listed = {pod.pod_uid: pod for pod in listing.pods}
        for uid, life in self._lives.items():
            if uid not in listed and life.valid_to_tick is None:
                self._lives[uid] = _ended(life, now_tick)
        for uid, pod in listed.items():
            known = self._lives.get(uid)
            first_tick = known.valid_from_tick if known else unseen_from_tick
            since_tick = first_tick if pod.since_tick is None else pod.since_tick
            self._lives[uid] = _Life(listed=pod, valid_from_tick=since_tick)
        self._facts = dict(listing.facts)
        nodes = {*before, *self.nodes}
        return {node for node in nodes if before.get(node) != (self.pods(node), self.facts(node))}

    def expire(self, now_tick: int) -> set[str]:
        """Forget pods that ended an hour ago; returns the nodes whose record changed."""
        old = [
            uid
            for uid, life in self._lives.items()
            if life.valid_to_tick is not None and now_tick - life.valid_to_tick > KEPT_TICKS
        ]
        return {self._lives.pop(uid).listed.node for uid in old}

    def pods(self, node: str) -> list[Pod]:
        """The node's pods, ended ones too, in a fixed order."""
        lives = [life for life in self._lives.values() if life.listed.node == node]
        return [life.pod for life in sorted(lives, key=lambda life: (life.valid_from_tick, life.listed.pod_uid))]

    def facts(self, node: str) -> NodeFacts:
        """What is known of the node."""
        return self._facts.get(node, NodeFacts())


def _ended(life: _Life, now_tick: int) -> _Life:
    return _Life(listed=life.listed, valid_from_tick=life.valid_from_tick, valid_to_tick=now_tick)
