"""`concertina init`: a config to begin with, which is valid and never takes the place of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.cli.main import app
from proxy.config.loading import load, notes
from proxy.server.addresses import of_proxy


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def begun(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(["init", *words])
    return int(ended.value.code or 0)


def test_what_is_written_is_valid_and_says_nothing_that_an_operator_has_to_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert begun() == 0
    config = load(Path("config.yaml"), {"OPENAI_BASE_URL": "http://127.0.0.1:8795/v1"})
    assert {name: each.base_url for name, each in config.upstreams.items()} == {
        "main": "https://api.openai.com/v1",
        "anthropic": "https://api.anthropic.com/v1",
    }
    assert (of_proxy(config), notes(config)) == ("http://127.0.0.1:8795", ())
    out = capsys.readouterr().out
    for told in ("concertina doctor", "concertina serve", "codex", "ANTHROPIC_BASE_URL=http://127.0.0.1:8795\n"):
        assert told in out


def test_one_agent_and_another_server_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert begun("--agent", "aider", "--upstream", "http://model.example:8000") == 0
    assert load(Path("config.yaml"), {}).upstreams["main"].base_url == "http://model.example:8000"
    out, err = capsys.readouterr()
    assert ("aider" in out, "codex" in out) == (True, False)
    assert err.startswith("note: upstreams.main.base_url: has no path")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--agent", "nobody"), "no client is called nobody; known are aider, "),
        (("--agent", "qwen-cod3"), "no client is called qwen-cod3; did you mean qwen-code? known are aider, "),
        (("--upstream", "model.example"), "--upstream model.example: must be an http:// or https:// URL with a host"),
        (("--upstream", 'x"}: {'), '--upstream x"}: {: must be an http:// or https:// URL'),
    ],
)
def test_what_cannot_be_meant_writes_nothing(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert begun(*words) == 1
    assert capsys.readouterr().err.startswith(said)
    assert not Path("config.yaml").exists()


@pytest.mark.parametrize(
    ("agent", "needs"),
    [("codex", 'base_url = "http://127.0.0.1:1234/v1"'), ("cc", "ANTHROPIC_BASE_URL=http://127.0.0.1:1234\n")],
)
def test_beside_a_config_it_prints_what_an_agent_needs(
    capsys: pytest.CaptureFixture[str], agent: str, needs: str
) -> None:
    Path("config.yaml").write_text("server: {port: 1234}", "utf-8")
    assert begun("--agent", agent) == 0
    assert needs in capsys.readouterr().out
    assert Path("config.yaml").read_text("utf-8") == "server: {port: 1234}"


def test_a_config_that_is_there_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Path("config.yaml").write_text("closed: true", "utf-8")
    assert begun() == 1
    assert capsys.readouterr().err.startswith("config.yaml exists already; ")
    assert Path("config.yaml").read_text("utf-8") == "closed: true"
