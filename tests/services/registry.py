"""A real schema registry: Apicurio, in memory, with Confluent's API, without Docker."""

import shutil
import subprocess
from pathlib import Path

from tests.paths import cache_dir, need, repo_root
from tests.services.process import ServiceProcess, answers, free_port

VERSION = "2.6.13"


def registry_app() -> Path:
    """The unpacked registry, fetched once; skips, or fails in CI, where that cannot be."""
    need(shutil.which("java"), "the schema registry needs Java 17", "apt install openjdk-17-jre-headless")
    app = cache_dir() / f"apicurio-{VERSION}"
    if not app.is_dir():
        need(shutil.which("mvn"), "the schema registry comes through Maven", "apt install maven")
        script = repo_root() / "infra" / "dev" / "registry" / "fetch.sh"
        done = subprocess.run([script, app], capture_output=True, text=True, timeout=1300, check=False)
        need(done.returncode == 0, f"the registry could not be fetched: {done.stderr[-500:]}", f"run {script} {app}")
    return app


class Registry:
    """One registry; `url` speaks Confluent's Schema Registry API."""

    def __init__(self, folder: Path) -> None:
        app = registry_app()
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        folder.mkdir(parents=True, exist_ok=True)
        options = ["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        address = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
        jar = str(app / f"apicurio-registry-app-{VERSION}.Final-runner.jar")
        self.process = ServiceProcess(
            "registry",
            ["java", *options, *address, "-jar", jar],
            folder,
            lambda: answers(f"{self.url}/subjects"),
            start_timeout_s=120,
        )

    def start(self) -> str:
        """Start, wait until it serves; returns the API's address."""
        self.process.start()
        return self.url

    def stop(self) -> None:
        self.process.stop()
