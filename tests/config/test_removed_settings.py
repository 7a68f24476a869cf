"""Settings of earlier releases: one line that says what holds instead of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config.errors import REMOVED_SETTINGS
from proxy.config.loading import ConfigError, load_text

UPGRADING = (Path(__file__).parents[2] / "docs/upgrading.md").read_text("utf-8")


def written(path: str) -> str:
    """Return a config that has this setting in its last line."""
    *sections, key = path.replace("*", "mine").split(".")
    above = "".join(f"{'  ' * depth}{section}:\n" for depth, section in enumerate(sections))
    return f"{above}{'  ' * len(sections)}{key}: 1"


@pytest.mark.parametrize("path", REMOVED_SETTINGS)
def test_a_removed_setting_says_what_holds_instead(path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_text("c.yaml", written(path), {})
    line = f"c.yaml:{path.count('.') + 1}: {path.replace('*', 'mine')}"
    assert str(refused.value) == f"{line}: was removed in 0.3.0: {REMOVED_SETTINGS[path]}; remove it"
    assert f"| `{path}` |" in UPGRADING


def test_every_removed_setting_is_named_at_once_and_the_others_as_ever() -> None:
    text = "server: {name: a, memory: 1, nam: b}\ntelemetry: {trail: true}\npolicies: {a: {usage: upstream, mode: of}}"
    with pytest.raises(ConfigError) as refused:
        load_text("c.yaml", text, {})
    assert sorted(problem.path for problem in refused.value.problems) == [
        *("policies.a.mode", "policies.a.usage", "server.memory", "server.nam", "server.name", "telemetry.trail")
    ]
