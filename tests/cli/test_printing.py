"""`concertina print`: what comes with the package."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import tomllib
from typing import TYPE_CHECKING

import pytest
import yaml

from proxy.cli.main import app
from proxy.cli.printing import _ALIASES, clients, known_client

if TYPE_CHECKING:
    from pathlib import Path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    app(["print", *words], result_action="return_value")
    return capsys.readouterr().out


def test_the_dashboard_and_the_alerts_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(told(capsys, "grafana"))["title"] == "Concertina"
    assert yaml.safe_load(told(capsys, "alerts"))["groups"][0]["name"] == "concertina"


def test_how_to_run_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(yaml.safe_load(told(capsys, "compose"))["services"]) == {"concertina", "valkey"}
    kinds = [part["kind"] for part in yaml.safe_load_all(told(capsys, "k8s"))]
    assert kinds == ["ConfigMap", "Deployment", "Service", "PodDisruptionBudget"]
    kinds = [part["kind"] for part in yaml.safe_load_all(told(capsys, "k8s-scaling"))]
    assert kinds == ["HorizontalPodAutoscaler", "ServiceMonitor"]
    assert "ExecStart=" in told(capsys, "systemd")
    assert "ListenStream=" in told(capsys, "socket")


def test_the_chart_is_an_archive(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    app(["print", "helm"], result_action="return_value")
    sys.stdout.flush()
    with tarfile.open(fileobj=io.BytesIO(capfdbinary.readouterr().out)) as archive:
        assert {"concertina/Chart.yaml", "concertina/templates/deployment.yaml"} <= set(archive.getnames())


def test_what_a_client_needs_has_the_configs_address(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("server: {port: 1234}", "utf-8")
    for name in clients():
        text = told(capsys, "client", name, "--config", str(config))
        assert "http://127.0.0.1:1234" in text, name
        assert "{address}" not in text
    assert tomllib.loads(told(capsys, "client", "codex"))["model_provider"] == "concertina"
    heading, _, block = told(capsys, "client", "opencode").partition("\n")  # it takes comments in its file
    assert heading.startswith("// opencode, in opencode.json")
    assert json.loads(block)["provider"].keys() == {"openai", "anthropic"}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("claude", "claude-code"),
        ("Claude Code", "claude-code"),
        ("claude_code", "claude-code"),
        ("openwebui", "open-webui"),
        ("LangChain", "langchain"),
        ("litellm", "litellm"),
        ("qwen", "qwen-code"),
        ("openai", "openai"),
        ("cc", "claude-code"),
        ("Gemini CLI", "gemini-cli"),
        ("gemini", "gemini-cli"),
        ("openai-python", "openai"),
        ("openai-node", "openai"),
        ("agents", "openai-agents"),
        ("openai-agents", "openai-agents"),
        ("OpenAI Agents SDK", "openai-agents"),
        ("pydantic", "pydantic-ai"),
        ("anthropic-sdk", "anthropic"),
    ],
)
def test_a_client_is_known_however_its_name_is_written(name: str, known: str) -> None:
    assert known_client(name) == known


@pytest.mark.parametrize("words", [("client",), ("client", "nobody's"), ("client", "open")])
def test_a_client_has_to_be_one_that_is_known(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        told(capsys, *words)
    assert ended.value.code == 1
    assert "claude-code, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "nearest"), [("clade-code", "claude-code"), ("opencoed", "opencode"), ("gemni", "gemini-cli")]
)
def test_a_slip_in_a_clients_name_suggests_the_nearest(
    capsys: pytest.CaptureFixture[str], name: str, nearest: str
) -> None:
    with pytest.raises(SystemExit):
        told(capsys, "client", name)
    assert f"no client is called {name}; did you mean {nearest}?" in capsys.readouterr().err


def test_every_alias_names_a_client_that_is_known() -> None:
    assert set(_ALIASES.values()) <= set(clients())
    assert all(alias.isalnum() and alias == alias.lower() for alias in _ALIASES)


def test_gemini_cli_is_told_that_its_own_api_is_not_compacted(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "client", "gemini")
    assert "it compacts nothing there" in text
    (model,) = yaml.safe_load(text)["model_list"]
    assert model["litellm_params"]["api_base"].endswith("/v1")
