"""Libraries for agents ask for compactions by the providers' protocols, before an upstream that has none of them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy.cli.demo.serving import serving as serve
from tests.agents.running import ended, lines_of, parts, run
from tests.agents.speaking import Messages, Responses, Speech
from tests.agents.starting import ALONE
from tests.agents.without_protocols import WithoutProtocols
from tests.support.upstreams import config_for, serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS, WINDOW = 70, 200_000
CLIENTS = Path(__file__).parent / "clients"
INSTALLED = Path(__file__).parents[2] / "var" / "clients"
RULES = ("Never change a part.", "Call the release Heron.")
QUIET = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True)
class Library:
    """A program in `clients` that works with a library.

    turns:      whether each part is a turn of its own. characters: of a part. made: how many items it may get.
    """

    program: str
    arguments: tuple[str, ...]
    speech: Speech
    made: tuple[int, int]
    turns: bool = False
    characters: int = 3_500


LIBRARIES = {
    "Agents SDK, by its items": Library("agents_session.py", ("input",), Responses(), (8, 20), turns=True),
    "Agents SDK, by its items, streamed": Library(
        "agents_session.py", ("input", "stream"), Responses(), (8, 20), turns=True
    ),
    "Pydantic AI, OpenAI's threshold": Library("pydantic_openai.py", ("threshold",), Responses(), (3, 10)),
    "Pydantic AI, OpenAI's endpoint": Library("pydantic_openai.py", ("endpoint",), Responses(), (8, 20), turns=True),
    "Pydantic AI, Anthropic's edit": Library(
        "pydantic_anthropic.py", ("edit",), Messages(), (3, 10), characters=10_000
    ),
    "Pydantic AI, Anthropic's on demand": Library("pydantic_anthropic.py", ("demand",), Messages(), (7, 7), turns=True),
}


@pytest.mark.parametrize("name", LIBRARIES)
async def test_a_library_goes_on_behind_its_own_compactions(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    library = LIBRARIES[name]
    if not (INSTALLED / ".ready").is_file():
        pytest.skip(f"{name.partition(',')[0]} is not installed: run `make agents` (needs Node 20)")
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    parts(work, ROUNDS, library.characters)
    upstream = WithoutProtocols(
        library.speech,
        WINDOW,
        ROUNDS,
        lambda number: ("read_part", {"number": int(number)}),
        command=str,
        marker=ended,
        task=RULES[0],
        turns=library.turns,
    )
    models = [{"match": "*", "context_window": WINDOW}]
    async with (
        serve(upstream) as behind,
        serving(config_for(tmp_path, behind, models=models, logging={"level": "info"})) as address,
    ):
        command = [sys.executable, str(CLIENTS / library.program), address, str(ROUNDS), *library.arguments]
        code, said = await run(command, {"PYTHONPATH": str(INSTALLED), **ALONE, **QUIET}, work, home)
    lines = [json.loads(line) for line in lines_of(capfd.readouterr().err)]
    made = [line for line in lines if line["event"] == "compaction_item" and line["what"] == "made"]
    assert (code, upstream.problems, upstream.overflows, upstream.beside) == (0, [], 0, 0), said[-2_000:]
    assert (work / "journal.txt").read_text().split() == [str(number) for number in range(1, ROUNDS + 1)]
    assert not upstream.asked
    assert library.made[0] <= len(made) <= library.made[1]
    last = json.dumps(upstream.received[-1])
    assert all(rule in last for rule in RULES)
    assert "ccn1." not in json.dumps(upstream.received)
    requests = [line for line in lines if line["event"] == "request"]
    assert {(line["status"], line["end"]) for line in requests} == {(200, "complete")}
