"""`concertina completion`: what shells are told of the commands."""

from __future__ import annotations

import subprocess

import pytest

from proxy.cli.main import app


def printed(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    with pytest.raises(SystemExit) as ended:
        app(["completion", shell])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("ta",), ["tail"]),
        (("sessions", "ex"), ["export"]),
        (("tail", "--ur"), ["--url"]),
        (("completion", "f"), ["fish"]),
    ],
)
def test_bash_completes_commands_options_and_choices(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], completed: list[str]
) -> None:
    asked = f'COMP_WORDS=(concertina {" ".join(words)}); COMP_CWORD={len(words)}; _concertina; echo "${{COMPREPLY[@]}}"'
    script = f"{printed(capsys, 'bash')}\n{asked}\n"
    ended = subprocess.run(["bash", "--norc"], input=script, capture_output=True, text=True, timeout=30, check=True)
    assert (ended.stdout.split(), ended.stderr) == (completed, "")


@pytest.mark.parametrize(("shell", "begins"), [("zsh", "#compdef concertina"), ("fish", "# Fish completion")])
def test_other_shells_get_scripts_of_their_own(capsys: pytest.CaptureFixture[str], shell: str, begins: str) -> None:
    script = printed(capsys, shell)
    assert script.startswith(begins)
    assert "replay" in script
