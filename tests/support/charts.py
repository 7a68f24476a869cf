"""Helm and the schemas of Kubernetes' objects, as `make charts` installs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

Manifest = dict[str, Any]

CHART = Path(str(resources.files("proxy"))) / "deploy/chart"
_INSTALLED = Path(__file__).parents[2] / "var/charts"
# Kinds whose definition is a third party's.
_OF_OPERATORS = ("ServiceMonitor",)
# By itself: what its library starts in a process stays there.
_HELM = """
import json, sys, helm_python
chart, values = sys.argv[1], json.loads(sys.argv[3])
with helm_python.Chart.load(chart) as loaded:
    found = loaded.render(values, name=sys.argv[2])
print(json.dumps({"lint": helm_python.lint(chart, values, strict=True), "manifests": found}))
"""


def rendered(name: str = "concertina", **values: object) -> list[Manifest]:
    """The objects of a release with this name; fails for what Helm's lint says beyond hints."""
    if not (_INSTALLED / ".ready").exists():
        pytest.skip("Helm is not installed: run `make charts`")
    ended = subprocess.run(
        [sys.executable, "-c", _HELM, CHART, name, json.dumps(values)],
        env={**os.environ, "PYTHONPATH": str(_INSTALLED)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert not found["lint"]["errors"]
    assert not [message for message in found["lint"]["messages"] if message["severity"] > 1]
    return [part for text in found["manifests"].values() for part in yaml.safe_load_all(text) if part]


def check_schema(manifest: Manifest, version: str) -> None:
    """Raise ValidationError unless this version of Kubernetes knows the object and each of its fields."""
    if manifest["kind"] in _OF_OPERATORS:
        return
    group, _, api = manifest["apiVersion"].rpartition("/")
    kind = "-".join(filter(None, [manifest["kind"].lower(), group.partition(".")[0], api]))
    folder = _INSTALLED / "kubernetes_validate/kubernetes-json-schema" / f"v{version}.0-local-strict"
    schema = json.loads((folder / f"{kind}.json").read_text("utf-8"))
    whole = {**_inlined(schema), "$defs": _definitions(folder)}
    # Without a look at the schemas themselves, which would take ten times as long.
    jsonschema.validators.validator_for(whole)(whole).validate(manifest)


@cache
def _definitions(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = _inlined(json.loads((folder / "_definitions.json").read_text("utf-8")))["$defs"]
    return found


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """With references into the file of definitions as references into itself."""
    found: dict[str, Any] = json.loads(json.dumps(schema).replace('"/api/_definitions.json#', '"#'))
    return found
