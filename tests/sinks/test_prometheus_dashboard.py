"""The dashboard asks only for what the exporter tells, in expressions that Prometheus understands."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sinks.prometheus import declared
from tests.paths import repo_root
from tests.services.prometheus import Prometheus

BOARD = json.loads((repo_root() / "infra" / "grafana" / "fabric-sentinel.json").read_text())
LABELS = {metric.name: set(metric.labels) for metric in declared.ALL}
WORDS = {"by", "sum", "count", "or", "vector", "increase", "rate", "time"}


def queries() -> list[str]:
    expressions = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", [])]
    variables = [one["query"] for one in BOARD["templating"]["list"] if one["type"] == "query"]
    return expressions + variables


def names(query: str) -> Iterator[str]:
    """Every word of a query that is neither a value nor PromQL's own: metrics and labels."""
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]', "", query).removeprefix("label_values")
    yield from (word for word in re.findall(r"[a-z_]{2,}", bare) if word not in WORDS)


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def test_every_query_names_only_metrics_and_labels_that_the_exporter_declares() -> None:
    for query in queries():
        metrics = {name for name in names(query) if name in LABELS}
        assert metrics, query
        assert set(names(query)) - metrics <= set.union(*(LABELS[metric] for metric in metrics)), query


def test_every_metric_of_what_is_found_is_on_the_dashboard() -> None:
    shown = {name for query in queries() for name in names(query)}
    assert {metric.name for metric in declared.FINDINGS} - shown == {declared.JOB_GPUS.name}


def test_what_is_simulated_is_hidden_until_somebody_asks_for_it() -> None:
    [choice] = [one for one in BOARD["templating"]["list"] if one["name"] == "shown"]
    assert choice["current"]["value"] == "kernel|inspector|unknown"
    for query in queries():
        assert 'source=~"$shown"' in query or "label_values" in query or declared.DEAD_LETTERS.name in query


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


@pytest.mark.services
def test_prometheus_understands_every_query(new_prometheus: Callable[..., Prometheus]) -> None:
    prometheus = new_prometheus({})
    for panel in panels():
        for target in panel["targets"]:
            prometheus.query(target["expr"].replace("$__range", "1h"))  # Raises where it is refused
