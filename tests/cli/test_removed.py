"""Commands and options of earlier releases: one line that names what replaces each."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.cli import main as cli

UPGRADING = (Path(__file__).parents[2] / "docs/upgrading.md").read_text("utf-8")


@pytest.mark.parametrize(("command", "option"), cli._REMOVED)
def test_a_removed_command_or_option_says_what_replaces_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    name = f"{command} {option}".strip()
    monkeypatch.setattr("sys.argv", ["concertina", *name.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"{name} was removed in 0.3.0: ")
    assert f"| `concertina {name}` |" in UPGRADING


def test_a_removed_option_is_refused_with_its_value_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["concertina", "demo", "--dialect=messages"])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err.startswith("demo --dialect was removed in 0.3.0: ")
