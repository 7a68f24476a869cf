"""What comes with the package to run it with: read, by name."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

Manifest = dict[str, Any]
_FOLDER = resources.files("proxy") / "deploy"


def text(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


def objects(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all(text(name)))


def of_kind(kind: str, found: list[Manifest]) -> Manifest:
    (one,) = [each for each in found if each["kind"] == kind]
    return one


def by_kind(found: list[Manifest]) -> dict[str, Manifest]:
    """With the config that they hold as values, however it is written."""
    read = {each["kind"]: each for each in found}
    assert len(read) == len(found)
    for each in found:
        if each["kind"] == "ConfigMap":
            each["data"] = {name: yaml.safe_load(content) for name, content in each["data"].items()}
    return read
