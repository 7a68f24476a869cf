"""The files to run it with: hardened, with one grace, enough memory, and names that fit together."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from proxy.config.loading import load, load_text, notes
from proxy.config.settings import Server
from proxy.runtime.container import MOST_BUFFERED, buffered_that_fit
from tests.support.manifests import Manifest, by_kind, objects, of_kind, text
from tests.support.upstreams import JSON, OK_BODY, always, answer, connected, proxied, request

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
# Seconds behind `server.drain`: for last words, work in the background, what a collector has not taken yet.
_LAST, _BACKGROUND, _EXPORT = 5, 10, 2
_IMAGE_DELAY = 5


@pytest.fixture
def plain() -> list[Manifest]:
    return objects("kubernetes.yaml")


@pytest.fixture
def all_objects(plain: list[Manifest]) -> dict[str, Manifest]:
    return by_kind([*plain, *objects("kubernetes-scaling.yaml")])


def pod_of(found: list[Manifest]) -> Manifest:
    pod: Manifest = of_kind("Deployment", found)["spec"]["template"]["spec"]
    return pod


def violations(pod: Manifest) -> Iterator[str]:
    """Of Kubernetes' Pod Security Standard "restricted", and of a read-only root beyond it."""
    yield from {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for volume in pod["volumes"]:
        if not set(volume) - {"name"} <= {"configMap", "emptyDir", "secret", "projected", "persistentVolumeClaim"}:
            yield f"volume {volume['name']}"
    for container in pod["containers"]:
        own = {**pod.get("securityContext", {}), **container["securityContext"]}
        wanted = {
            "root": own.get("runAsNonRoot") is True and own.get("runAsUser") != 0,
            "seccomp": own.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "privileges": own.get("allowPrivilegeEscalation") is False and not own.get("privileged"),
            "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
            "root file system": own.get("readOnlyRootFilesystem") is True,
            "host port": not any("hostPort" in port for port in container["ports"]),
        }
        yield from (name for name, is_so in wanted.items() if not is_so)


def test_pods_are_restricted_and_run_as_any_user(plain: list[Manifest]) -> None:
    pod = pod_of(plain)
    assert list(violations(pod)) == []
    assert "runAsUser" not in str(pod)
    (container,) = pod["containers"]
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/data", "/tmp"}


def test_a_manifest_that_is_not_restricted_is_noticed(plain: list[Manifest]) -> None:
    pod = pod_of(plain)
    del pod["securityContext"]
    pod["containers"][0]["securityContext"] = {}
    pod["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
    found = set(violations(pod))
    assert found == {"volume host", "root", "seccomp", "privileges", "capabilities", "root file system"}


def test_all_files_have_one_grace_that_is_long_enough(plain: list[Manifest]) -> None:
    pod = pod_of(plain)
    grace = pod["terminationGracePeriodSeconds"]
    before = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert before + _IMAGE_DELAY + Server().drain + _LAST + _BACKGROUND + _EXPORT <= grace
    for name, pattern in {
        "proxy/deploy/compose.yaml": r"stop_grace_period: (\d+)s",
        "proxy/deploy/concertina.service": r"TimeoutStopSec=(\d+)",
        "proxy/deploy/chart/templates/deployment.yaml": r"terminationGracePeriodSeconds: (\d+)",
        "docs/deploy.md": r"terminationGracePeriodSeconds: (\d+)",
    }.items():
        assert re.findall(pattern, (ROOT / name).read_text("utf-8")) == [str(grace)], name
    assert f"CONCERTINA_DRAIN_DELAY={_IMAGE_DELAY}s" in (ROOT / "Dockerfile").read_text("utf-8")


def test_the_memory_of_a_pod_holds_what_the_defaults_allow(plain: list[Manifest]) -> None:
    resources = pod_of(plain)["containers"][0]["resources"]
    limit = int(resources["limits"]["memory"].removesuffix("Mi")) << 20
    fit = buffered_that_fit(limit)
    assert fit is not None
    assert fit >= MOST_BUFFERED


def test_the_config_of_the_pods_is_valid_with_the_secret_that_is_described(plain: list[Manifest]) -> None:
    named = re.findall(r"--from-literal=(\w+)=(\S+)", text("kubernetes.yaml"))
    env = {name: "redis://valkey:6379/0" if name == "CONCERTINA_STORE_URL" else "s" * 32 for name, _ in named}
    config = load_text("config.yaml", of_kind("ConfigMap", plain)["data"]["config.yaml"], env)
    assert config.store.url == "redis://valkey:6379/0"
    assert config.store.secret.get_secret_value() == config.server.admin_token.get_secret_value() == "s" * 32
    assert not [note for note in notes(config) if note.startswith("store")]


def test_names_and_labels_fit_together(all_objects: dict[str, Manifest]) -> None:
    spec = {kind: found.get("spec", {}) for kind, found in all_objects.items()}
    pods = spec["Deployment"]["template"]["metadata"]["labels"]
    assert pods.items() >= spec["Service"]["selector"].items()
    for selecting in ("Deployment", "PodDisruptionBudget"):
        assert pods.items() >= spec[selecting]["selector"]["matchLabels"].items()
    (spread,) = spec["Deployment"]["template"]["spec"]["topologySpreadConstraints"]
    assert pods.items() >= spread["labelSelector"]["matchLabels"].items()
    watched = spec["ServiceMonitor"]
    assert all_objects["Service"]["metadata"]["labels"].items() >= watched["selector"]["matchLabels"].items()
    assert [port["name"] for port in spec["Service"]["ports"]] == [watched["endpoints"][0]["port"]]
    scaled = spec["HorizontalPodAutoscaler"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == ("Deployment", all_objects["Deployment"]["metadata"]["name"])
    assert spec["Service"]["ports"][0]["port"] == Server().port


@pytest.mark.anyio
async def test_pods_are_counted_by_a_metric_of_ours(tmp_path: Path, all_objects: dict[str, Manifest]) -> None:
    (metric,) = all_objects["HorizontalPodAutoscaler"]["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    async with proxied(tmp_path, always(answer(200, OK_BODY, JSON))) as (address, _), connected(address) as client:
        await client.send(request("GET", "/metrics", [(b"Host", address.removeprefix("http://").encode())]))
        shown = await client.reply()
    assert f"# TYPE {name} gauge" in shown.body.decode()


def test_compose_hardens_the_service_and_names_its_secrets(tmp_path: Path) -> None:
    compose = yaml.safe_load(text("compose.yaml"))
    ours, env = compose["services"]["concertina"], compose["services"]["concertina"]["environment"]
    assert (ours["read_only"], ours["cap_drop"], ours["security_opt"]) == (True, ["ALL"], ["no-new-privileges:true"])
    assert compose["services"]["valkey"]["profiles"] == ["valkey"]
    files = {name: Path(path).name for name, path in env.items() if name.endswith("_FILE")}
    assert sorted(files.values()) == sorted(ours["secrets"]) == sorted(compose["secrets"])
    for secret in compose["secrets"]:
        (tmp_path / secret).write_text(f"{secret}-{'s' * 32}\n", "utf-8")
        assert secret in text("compose.yaml").partition("services:")[0]
    config = load(ROOT / "config.yaml", {name: str(tmp_path / file) for name, file in files.items()})
    assert config.server.admin_token.get_secret_value().startswith("admin_token-")
    assert config.store.secret.get_secret_value().startswith("store_secret-")


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed: run `apt-get install systemd`"
)
def test_the_units_are_valid_and_little_of_the_machine_is_exposed(tmp_path: Path) -> None:
    for unit in ("concertina.service", "concertina.socket"):
        (tmp_path / unit).write_text(text(unit).replace("/opt/concertina/bin/concertina", "/bin/true"), "utf-8")
    files = sorted(map(str, tmp_path.iterdir()))
    verified = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    ended = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager", files[0]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-200:]
