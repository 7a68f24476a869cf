"""`concertina replay --memory`: what answers need of far back, and what of it is still sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from proxy.commands.cli import app
from tests.support.conversations import Json, assistant, tool, user

if TYPE_CHECKING:
    from pathlib import Path

WINDOW = 8_000
FILLER = "the parser reads every line of it and nothing else happens here "


def session(rounds: int) -> list[Json]:
    """An agent that in the end needs a name of its first round, one of its last, and one that nobody has said."""
    messages = [user("Port the ingest service."), assistant("", "c0", arguments='{"command": "cat src/ingest.py"}')]
    messages.append(tool("c0", "12: def load_rows(path, dialect_name):\n" + FILLER * 5))
    for number in range(1, rounds):
        messages.append(assistant(FILLER * 3, f"c{number}", arguments=f'{{"command": "make step-{number}"}}'))
        messages.append(tool(f"c{number}", FILLER * 20 + f"step_{number}_done"))
    return [*messages, assistant(f"Call load_rows after step_{rounds - 1}_done, then never_said."), user("Go on.")]


CONFIG = """\
upstreams: {main: {base_url: http://127.0.0.1:9/v1}}
policies:
  carried: {extends: default, summarizer: {model: none}}
  without: {extends: carried, working_set: {budget_ratio: 0}, recall: off}
"""


def replayed(directory: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    (directory / "session.json").write_text(json.dumps(session(60)), "utf-8")
    (directory / "concertina.yaml").write_text(CONFIG, "utf-8")
    words = ["replay", str(directory / "session.json"), "--config", str(directory / "concertina.yaml")]
    with pytest.raises(SystemExit) as ended:
        app([*words, "--window", str(WINDOW), "--policy", "carried", "--policy", "without", *options])
    assert not ended.value.code
    return capsys.readouterr().out


def test_it_counts_what_is_needed_of_far_back_and_what_of_it_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (session,) = json.loads(replayed(tmp_path, capsys, "--memory", "--json"))["sessions"]
    met = {name: row["memory"] for name, row in session["policies"].items()}
    assert met["no proxy"] is None
    assert [met["carried"][name] for name in ("needs", "recall", "in_context")] == [1, 1.0, 1.0]
    assert [met["without"][name] for name in ("needs", "recall", "in_context")] == [1, 0.0, 0.0]
    assert met["carried"]["steps_possible"] == 1.0
    assert met["without"]["steps_possible"] < 1.0
    assert met["carried"]["newest_same_size"] == met["carried"]["newest_full_window"] == 0.0


def test_the_table_has_a_second_part_only_where_it_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "in context" in replayed(tmp_path, capsys, "--memory")
    assert "in context" not in replayed(tmp_path, capsys)
