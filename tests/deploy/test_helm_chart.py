"""The Helm chart: what the manifests have by default, valid with every value, and the project's version."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import yaml

from tests.support.charts import CHART, check_schema, rendered
from tests.support.manifests import by_kind, objects, of_kind

pytestmark = pytest.mark.slow

SCALING: dict[str, object] = {"autoscaling": {"enabled": True}, "serviceMonitor": {"enabled": True}}
EVERYTHING: dict[str, object] = {
    "image": {"repository": "images.example/concertina", "tag": "1.2", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "secret": "ours",
    "config": {"closed": True, "upstreams": {"main": {"base_url": "${BASE}", "api_key": "${KEY}"}}},
    "service": {"port": 80},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "annotations": {"nginx.ingress.kubernetes.io/proxy-buffering": "off"},
        "host": "llm.example",
        "tlsSecret": "tls",
    },
    "autoscaling": {"enabled": True, "maxReplicas": 9},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
}


def test_by_default_it_is_the_manifest() -> None:
    assert by_kind(rendered()) == by_kind(objects("kubernetes.yaml"))


def test_scaled_and_watched_it_is_both_manifests() -> None:
    wanted = by_kind([*objects("kubernetes.yaml"), *objects("kubernetes-scaling.yaml")])
    del wanted["Deployment"]["spec"]["replicas"]
    assert by_kind(rendered(**SCALING)) == wanted


@pytest.mark.parametrize("kubernetes", ["1.27", "1.34"])
@pytest.mark.parametrize("values", [SCALING, EVERYTHING], ids=["scaling", "everything"])
def test_kubernetes_knows_every_field(values: dict[str, object], kubernetes: str) -> None:
    for manifest in rendered(**values):
        check_schema(manifest, kubernetes)


def test_every_value_reaches_its_object() -> None:
    found = rendered("llm", **EVERYTHING)
    assert {each["metadata"]["name"] for each in found} == {"llm-concertina"}
    pod = of_kind("Deployment", found)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("images.example/concertina:1.2", "Always")
    assert container["envFrom"] == [{"secretRef": {"name": "ours"}}]
    for name in ("imagePullSecrets", "nodeSelector", "tolerations"):
        assert pod[name] == EVERYTHING[name]
    assert yaml.safe_load(of_kind("ConfigMap", found)["data"]["config.yaml"]) == EVERYTHING["config"]
    ingress = of_kind("Ingress", found)["spec"]
    assert (ingress["ingressClassName"], ingress["tls"][0]["secretName"]) == ("nginx", "tls")
    (rule,) = ingress["rules"]
    assert (rule["host"], [path["path"] for path in rule["http"]["paths"]]) == ("llm.example", ["/v1"])
    monitor = of_kind("ServiceMonitor", found)
    assert monitor["metadata"]["labels"] == {"app": "llm-concertina", "release": "prometheus"}
    assert monitor["spec"]["endpoints"][0]["authorization"]["credentials"]["name"] == "ours"
    assert of_kind("HorizontalPodAutoscaler", found)["spec"]["maxReplicas"] == 9


def test_its_version_is_the_projects() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["version"] == chart["appVersion"] == version("concertina")
