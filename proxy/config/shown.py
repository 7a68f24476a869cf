"""Render a config without its secrets, complete or reduced to the differences from the defaults."""

from collections.abc import Mapping
from io import StringIO
from typing import Any
from urllib.parse import urlsplit

from ruamel.yaml import YAML

from proxy.config.loading import load
from proxy.config.settings import DEFAULT, MAIN, Config

_HASH_CHARACTERS = 12


def masked_values(config: Config) -> dict[str, Any]:
    """Return the values of a config: secrets as stars, addresses without credentials, hashes of keys shortened."""
    values: dict[str, Any] = config.model_dump(mode="json", by_alias=True)
    values["store"]["url"] = bare(config.store.url)
    for upstream in values["upstreams"].values():
        upstream["base_url"] = bare(upstream["base_url"])
    for tenant in values["tenants"].values():
        for setting in ("keys", "viewer_keys"):
            tenant[setting] = [f"{key[:_HASH_CHARACTERS]}…" for key in tenant[setting]]
    return values


def changed_values(config: Config) -> dict[str, object]:
    """Return the masked values that differ from those without a config file and environment variables.

    A policy, an upstream or a tenant that the defaults do not have is compared with the default one.
    """
    defaults = masked_values(load(None, {}))
    values = masked_values(config)
    for section in ("policies", "upstreams", "tenants"):
        default_entry = defaults[section].get(DEFAULT) or defaults[section][MAIN]
        defaults[section] |= {name: default_entry for name in values[section] if name not in defaults[section]}
    values["models"] = [{name: value for name, value in rule.items() if value is not None} for rule in values["models"]]
    return _changes(values, defaults)


def _changes(values: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    changed: dict[str, object] = {}
    for name, value in values.items():
        default = defaults.get(name)
        if value == default:
            continue
        changed[name] = _changes(value, default) if isinstance(value, dict) and isinstance(default, dict) else value
    return changed


def as_yaml(values: Mapping[str, object]) -> str:
    """Return values as YAML, in their order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.representer.sort_base_mapping_type_on_output = False
    yaml.dump(values, text := StringIO())
    return text.getvalue()


def bare(url: str) -> str:
    """Return an address without user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
