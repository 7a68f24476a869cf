"""codex on its built-in provider asks for compactions by OpenAI's protocol, before an upstream that has none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.cli.demo.serving import serving as serve
from tests.agents.running import ended, lines_of, parts, run
from tests.agents.speaking import Responses
from tests.agents.starting import CODEX, KEY, codex_built_in, installed
from tests.agents.without_protocols import WithoutProtocols
from tests.support.upstreams import config_for, serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS, WINDOW, OURS = 70, 40_000, 200_000
TASK = "Read every part, in order. Never change a part. Call the release Heron."
RULES = ("Never change a part.", "Call the release Heron.")


async def test_codex_goes_on_behind_its_own_compactions(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = next(installed(CODEX), None)
    if program is None:
        pytest.skip("codex is not installed for this machine: run `make agents` (needs Node 20)")
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    parts(work, ROUNDS, 3_500)
    (work / "AGENTS.md").write_text("# Rules\n\nAlways answer in British English.\n")
    upstream = WithoutProtocols(
        Responses(),
        OURS,
        ROUNDS,
        lambda command: ("exec_command", {"cmd": command}),
        command=lambda number: f"echo {number} >> journal.txt; cat part_{number}.txt",
        marker=ended,
        task=TASK,
    )
    async with serve(upstream) as behind:
        models = [{"match": "gpt-5", "context_window": OURS}]
        async with serving(config_for(tmp_path, behind, models=models, logging={"level": "info"})) as address:
            arguments = codex_built_in(TASK, WINDOW)(home, address)
            code, said = await run([str(program), *arguments], {"OPENAI_API_KEY": KEY}, work, home, 300)
    lines = [json.loads(line) for line in lines_of(capfd.readouterr().err)]
    made = [line for line in lines if line["event"] == "compaction_item" and line["what"] == "made"]
    assert (code, upstream.problems, upstream.overflows) == (0, [], 0), said[-2_000:]
    assert (work / "journal.txt").read_text().split() == [str(number) for number in range(1, ROUNDS + 1)]
    assert not upstream.asked
    assert 2 <= len(made) <= 8
    last = json.dumps(upstream.received[-1])
    assert all(rule in last for rule in RULES)
    assert "Always answer in British English." in last
    assert "ccn1." not in json.dumps(upstream.received)
    statuses: set[tuple[int, str]] = {(line["status"], line["end"]) for line in lines if line["event"] == "request"}
    assert statuses <= {(200, "complete"), (426, "refused"), (404, "complete")}, statuses
