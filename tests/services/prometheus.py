"""A real Prometheus that scrapes what a test names, and promtool's verdict on exposition text."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.paths import need
from tests.services.process import ServiceProcess, answers, free_port, wait_until

FIX = "apt install --no-install-recommends prometheus"


class Prometheus:
    """One server that scrapes `targets` (job name → host:port or http URL) every second."""

    def __init__(self, folder: Path, targets: Mapping[str, str], rule_files: tuple[Path, ...] = ()) -> None:
        need(shutil.which("prometheus"), "Prometheus is not installed", FIX)
        self.url = f"http://127.0.0.1:{free_port()}"
        folder.mkdir(parents=True, exist_ok=True)
        # JSON is YAML.
        (folder / "prometheus.yml").write_text(json.dumps(_settings(targets, rule_files)))
        self.process = ServiceProcess(
            "prometheus",
            [
                "prometheus",
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                f"--web.listen-address={self.url.removeprefix('http://')}",
            ],
            folder,
            lambda: answers(f"{self.url}/-/ready"),
        )

    def start(self) -> str:
        """Start, wait until it serves; returns its address."""
        self.process.start()
        return self.url

    def stop(self) -> None:
        self.process.stop()

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """An instant query's vector: (labels, value) each."""
        url = f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 (loopback, http)
            answer = json.load(response)
        return [(row["metric"], float(row["value"][1])) for row in answer["data"]["result"]]

    def wait_for(self, expression: str, timeout_s: float = 60.0) -> list[tuple[dict[str, str], float]]:
        """The same as query(), once it gives at least one row."""
        wait_until(lambda: bool(self.query(expression)), f"Prometheus answers {expression}", timeout_s)
        return self.query(expression)


def check_metrics(exposition: str) -> str:
    """What `promtool check metrics` has to say about exposition text: empty when it is content."""
    need(shutil.which("promtool"), "promtool is not installed", FIX)
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=exposition,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    complaints = (done.stdout + done.stderr).strip()
    return complaints or ("" if done.returncode == 0 else f"promtool ended with {done.returncode}")


def _settings(targets: Mapping[str, str], rule_files: tuple[Path, ...]) -> dict[str, object]:
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rule_files],
        "scrape_configs": [_scrape(job, target) for job, target in targets.items()],
    }


def _scrape(job: str, target: str) -> dict[str, object]:
    parts = urllib.parse.urlsplit(target if "://" in target else f"http://{target}")
    return {
        "job_name": job,
        "metrics_path": parts.path or "/metrics",
        "static_configs": [{"targets": [parts.netloc]}],
    }
