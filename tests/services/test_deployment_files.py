"""The compose file, the manifests, the images' package lists and Prometheus' settings hold what they promise."""

import ast
import importlib.metadata
import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from fabric_sentinel.cli import cli
from fabric_sentinel.settings import ENV_PREFIX, reference
from infra.component_lock import blocks, closure, normal, wanted
from producers.pods.file import read_listing
from tests.paths import cache_dir, need, repo_root
from tests.services.prometheus import FIX as PROMETHEUS_FIX

INFRA = repo_root() / "infra"
COMPOSE = INFRA / "docker-compose.yml"
AGENT_CAPABILITIES = {"BPF", "PERFMON", "SYS_RESOURCE", "SYS_PTRACE", "DAC_READ_SEARCH"}


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text()))


def services() -> dict[str, dict[str, Any]]:
    return dict(compose()["services"])


def manifests() -> Iterator[dict[str, Any]]:
    for path in sorted((INFRA / "k8s").glob("*.yaml")):
        if path.name != "kustomization.yaml":
            yield from yaml.safe_load_all(path.read_text())


def workloads() -> list[dict[str, Any]]:
    return [m for m in manifests() if m["kind"] in {"DaemonSet", "Deployment"}]


def containers(workload: dict[str, Any]) -> list[dict[str, Any]]:
    pod = workload["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


@pytest.fixture(scope="session")
def compose_check() -> Path:
    """docker compose's own loader, built once from its Go module."""
    binary = cache_dir() / "compose-check-2.9.1"
    if not binary.exists():
        need(shutil.which("go"), "the compose file is checked by a Go program", "install Go 1.24 or newer")
        build = subprocess.run(
            ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", binary, "."],
            cwd=INFRA / "dev" / "compose",
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        need(build.returncode == 0, f"compose-check did not build: {build.stderr[-500:]}", "see infra/dev/compose")
    return binary


@pytest.mark.services
def test_docker_composes_loader_takes_the_file_with_every_profile(compose_check: Path) -> None:
    done = subprocess.run([compose_check, COMPOSE], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["services"]) == set(services())


@pytest.mark.services
@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("command: [stream]", "commando: [stream]", "'commando' not allowed"),
        ("topics: {condition", "topicz: {condition", "depends on undefined service"),
        ("\n  prometheus: {}", "", "undefined volume"),
        ("secrets: [sink.toml]", "secrets: [nope]", "undefined secret"),
    ],
)
def test_docker_composes_loader_refuses_a_broken_file(
    compose_check: Path, tmp_path: Path, right: str, wrong: str, complaint: str
) -> None:
    text = COMPOSE.read_text()
    assert right in text
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(text.replace(right, wrong))
    done = subprocess.run([compose_check, broken], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert complaint in done.stderr


def test_every_published_port_is_bound_to_loopback() -> None:
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert len(ports) == 5
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_every_foreign_image_is_pinned_to_a_version() -> None:
    images = {service["image"] for service in services().values()}
    foreign = {image for image in images if not image.startswith("fabric-sentinel-")}
    assert len(foreign) == 4
    assert [image for image in foreign if not any(digit.isdigit() for digit in image.partition(":")[2])] == []


def test_no_secret_stands_in_the_compose_file() -> None:
    assert all(set(secret) == {"file"} for secret in compose()["secrets"].values())
    words = ("password", "secret", "token", "dsn")
    for name, service in services().items():
        for key, value in service.get("environment", {}).items():
            if any(word in key.lower() for word in words):
                assert str(value).startswith("/run/secrets/"), (name, key)


def test_the_secrets_are_written_once_and_for_us_alone(tmp_path: Path) -> None:
    script = tmp_path / "infra" / "dev" / "make-secrets"
    script.parent.mkdir(parents=True)
    shutil.copy(INFRA / "dev" / "make-secrets", script)
    folder = tmp_path / "infra" / "secrets"
    subprocess.run([script], check=True, capture_output=True, timeout=20)
    password = (folder / "clickhouse_password").read_text()
    subprocess.run([script], check=True, capture_output=True, timeout=20)
    assert (folder / "clickhouse_password").read_text() == password
    assert len(password) == 32
    assert f"clickhouse://fabric:{password}@clickhouse:8123/default" in (folder / "sink.toml").read_text()
    assert folder.stat().st_mode & 0o077 == 0


def settings_used() -> set[str]:
    keys = {key for service in services().values() for key in service.get("environment", {})}
    for manifest in manifests():
        keys |= set(manifest.get("data", {}))
    for workload in workloads():
        keys |= {env["name"] for container in containers(workload) for env in container.get("env", [])}
    return {key for key in keys if key.startswith(ENV_PREFIX)}


def test_every_setting_in_compose_and_manifests_exists() -> None:
    known = {variable for _key, variable, _default, _text in reference()} | {f"{ENV_PREFIX}CONFIG"}
    assert len(settings_used()) >= 7
    assert settings_used() - known == set()


def commands_used() -> Iterator[list[str]]:
    for service in services().values():
        if service["image"].startswith("fabric-sentinel-") and "command" in service:
            yield service["command"]
    for workload in workloads():
        yield from (container["args"] for container in containers(workload) if "args" in container)


def test_every_command_in_compose_and_manifests_exists() -> None:
    used = [words for words in commands_used() if words]
    assert len(used) == 10
    for words in used:
        command: click.Command = cli
        for word in itertools.takewhile(lambda word: not word.startswith("-"), words):
            assert isinstance(command, click.Group), words
            command = command.commands[word]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_the_example_lists_of_pods_are_read() -> None:
    texts = [(INFRA / "dev" / "pods" / "pods.yaml").read_text()]
    texts += [m["data"]["pods.yaml"] for m in manifests() if "pods.yaml" in m.get("data", {})]
    assert len(texts) == 2
    for text in texts:
        listing = read_listing(text)
        assert [(pod.name, pod.node) for pod in listing.pods] == [("pretrain-worker-0", "node-a")]


def test_every_manifest_passes_the_strict_schema() -> None:
    kinds = []
    for manifest in manifests():
        kubernetes_validate.validate(manifest, "1.33", strict=True)
        kinds.append(manifest["kind"])
    assert sorted(set(kinds)) == ["ConfigMap", "DaemonSet", "Deployment", "Namespace", "Secret", "Service"]


def test_kustomize_applies_every_manifest_but_the_example_secret() -> None:
    listed = yaml.safe_load((INFRA / "k8s" / "kustomization.yaml").read_text())["resources"]
    files = {path.name for path in (INFRA / "k8s").glob("*.yaml")}
    assert set(listed) == files - {"kustomization.yaml", "secret.example.yaml"}


def test_no_container_is_privileged_and_only_the_agent_holds_named_capabilities() -> None:
    held = {}
    for workload in workloads():
        for container in containers(workload):
            security = container["securityContext"]
            assert security.get("privileged", False) is False
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"]["drop"] == ["ALL"]
            if added := security["capabilities"].get("add"):
                held[container["name"]] = set(added)
    assert held == {"agent": AGENT_CAPABILITIES}
    assert set(services()["agent"]["cap_add"]) == AGENT_CAPABILITIES


def test_host_paths_are_mounted_read_only() -> None:
    host_mounts = []
    for workload in workloads():
        pod = workload["spec"]["template"]["spec"]
        host = {volume["name"] for volume in pod["volumes"] if "hostPath" in volume}
        host_mounts += [mount for c in containers(workload) for mount in c["volumeMounts"] if mount["name"] in host]
    assert [mount["mountPath"] for mount in host_mounts] == ["/sys"]
    assert all(mount["readOnly"] for mount in host_mounts)
    assert all(volume.endswith(":ro") for volume in services()["agent"]["volumes"])


def imported_packages(folders: list[str]) -> set[str]:
    """Distributions that the folders' modules import, tests' own and the standard library's left out."""
    roots: set[str] = set()
    for folder in folders:
        for path in (repo_root() / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    roots |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    roots.add(node.module.split(".")[0])
    ours = {"producers", "streams", "sinks", "fabric_sentinel", "bcc"}  # bcc: Debian's package
    brought_by = importlib.metadata.packages_distributions()
    foreign = {root for root in roots - ours if root not in sys.stdlib_module_names}
    return {normal(brought_by[root][0]) for root in foreign}


@pytest.mark.parametrize(
    ("extra", "folders"),
    [
        ("node", ["producers", "streams/contract"]),
        ("stream", ["streams"]),
        ("sink", ["sinks", "streams/contract"]),
    ],
)
def test_a_components_image_carries_every_package_that_it_imports(extra: str, folders: list[str]) -> None:
    lock = (repo_root() / "requirements.lock").read_text()
    names = wanted((repo_root() / "pyproject.toml").read_text(), extra)
    carried = {name for name, _parents, _text in blocks(closure(names, lock))}
    assert imported_packages(folders) - carried == set()


def test_a_components_list_keeps_hashes_and_follows_what_packages_need() -> None:
    lock = "a==1 \\\n    --hash=sha256:x\n    # via b\nb==2 \\\n    --hash=sha256:y\nc==3 \\\n    --hash=sha256:z\n"
    assert closure({"b"}, lock) == lock.removesuffix("c==3 \\\n    --hash=sha256:z\n")
    with pytest.raises(KeyError, match="absent"):
        closure({"absent"}, lock)


def promtool(*arguments: str | Path) -> tuple[int, str]:
    need(shutil.which("promtool"), "promtool is not installed", PROMETHEUS_FIX)
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.services
def test_prometheus_takes_its_settings_and_rules() -> None:
    code, said = promtool("check", "config", INFRA / "prometheus" / "prometheus.yml")
    assert code == 0, said
    assert "rules found" in said


@pytest.mark.services
@pytest.mark.parametrize("case", sorted((INFRA / "prometheus" / "tests").glob("*.yml")), ids=lambda path: path.stem)
def test_the_alerts_fire_when_they_should_and_not_before(case: Path) -> None:
    code, said = promtool("test", "rules", case)
    assert code == 0, said


def test_every_metric_in_a_rule_is_one_that_we_export() -> None:
    rules = "".join(path.read_text() for path in (INFRA / "prometheus" / "rules").glob("*.yml"))
    sources = "".join(
        path.read_text()
        for folder in ("producers", "streams", "sinks")
        for path in (repo_root() / folder).rglob("*.py")
    )
    used = set(re.findall(r"\bfabric_[a-z_]+", rules))
    assert used
    assert {name for name in used if f'"{name}"' not in sources} == set()
