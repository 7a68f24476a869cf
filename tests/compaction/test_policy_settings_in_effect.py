"""Settings that change what a summarizer is shown and what a record holds, each against what really goes out."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from policies.conversation.transcript import Part, ToolCall, Utterance, render
from tests.support.conversations import count
from tests.support.model_server import ModelServer
from tests.support.scenarios import MODEL, WINDOW, Agent, one_user
from tests.support.stages import CONTENT, Stage, body, history, outcome, stage

pytestmark = pytest.mark.anyio


LONG = "x" * 3_000
SPOKEN = [
    Utterance(0, "user", LONG),
    Utterance(1, "assistant", "", (ToolCall("bash", json.dumps({"command": LONG})),), reasoning="because of it"),
    Utterance(2, "tool", LONG, tool="bash"),
]


@pytest.mark.requirement("R3 3.1 partsToKeep")
@pytest.mark.parametrize(
    ("parts", "whole", "thought"),
    [
        (("text",), [True, False, False], False),
        (("tool",), [False, True, True], False),
        (("text", "reasoning"), [True, False, False], True),
        (("text", "tool", "reasoning"), [True, True, True], True),
        ((), [False, False, False], False),
    ],
)
async def test_the_summarizer_sees_whole_what_a_policy_keeps(
    parts: tuple[Part, ...], whole: list[bool], thought: bool
) -> None:
    blocks = render(SPOKEN, count, parts)
    assert [LONG in block.text for block in blocks] == whole
    assert ("because of it" in blocks[1].text) == thought


async def asked(directory: Path, **summarizer: object) -> tuple[Stage, list[dict[str, object]]]:
    """A session that was compacted three times, and what the summarizer was asked."""
    policies: dict[str, object] = {"default": {"summarizer": summarizer}}
    async with stage(directory, policies=policies) as play:
        for request in one_user(Agent(words=110), rounds=110):
            await play.send(body(request))
            await play.settled()
    return play, [json.loads(call.body) for call in play.model.received if call.is_summary]


@pytest.mark.requirement("R2 Switch 1")
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("segments", "shown"), [(0, 0), (1, 1), (3, 2)])
async def test_the_newest_segments_are_shown_as_a_policy_says(
    tmp_path: Path, segments: int, shown: int, *, aligned: bool
) -> None:
    play, questions = await asked(tmp_path, history_segments=segments, cache_aligned=aligned)
    assert len(questions) >= 3
    third = questions[2]["messages"]
    assert isinstance(third, list)
    prompt = third[-1]["content"]
    assert prompt.startswith("Stop the work here") == aligned
    timeline = prompt.partition("<timeline>")[2].partition("</timeline>")[0]
    assert timeline.count("\n- ") == shown
    record = next(m["content"] for m in json.loads(play.sent[-1].body)["messages"] if "conversation_record" in str(m))
    assert record.partition("## Timeline\n")[2].partition("\n\n")[0].count("- ") == min(segments, 3)


@pytest.mark.requirement("R1 3 trace", "R1 7 merge", "R2 Solution prompt")
async def test_prompts_name_the_length_and_the_merge_length_of_a_policy(tmp_path: Path) -> None:
    summarizer = {"target_tokens": 321, "merge_target_tokens": 654}
    model = ModelServer(window=WINDOW, windows={"small": 4_000})
    models = [{"match": "small", "context_window": 4_000}, {"match": MODEL, "context_window": WINDOW}]
    policies: dict[str, object] = {"default": {"summarizer": {**summarizer, "model": "small"}}}
    async with stage(tmp_path, model, models=models, policies=policies) as play:
        assert outcome(await play.send(body(history(0.95))))[0] == "applied"
    prompts = [json.loads(call.body)["messages"][0]["content"] for call in model.received if call.is_summary]
    merges = [prompt for prompt in prompts if prompt.startswith("You merge")]
    assert merges
    assert all("At most 654 tokens" in prompt for prompt in merges)
    asked = [int(re.findall(r"At most (\d+) tokens", prompt)[0]) for prompt in prompts if prompt not in merges]
    assert 250 <= min(asked) <= max(asked) == 321
    assert all("at most 500 characters" in prompt and "follow" in prompt for prompt in prompts)
    (line,) = play.logged("compaction")
    assert line["depth"]
    assert line["calls"] == len(prompts)
    assert line["chunks"] == len(prompts) - len(merges)


@pytest.mark.requirement("R3 3.1 compressSystemMessages")
async def test_instructions_inside_the_conversation_are_summarized_where_a_policy_says_so(tmp_path: Path) -> None:
    messages = history(0.95)
    messages.insert(6, {"role": "system", "content": "Be brief from here on."})
    shared: dict[str, object] = {"store": {"url": f"sqlite:///{tmp_path}/shared.db", "secret": "s"}}
    calls = []
    for compress in (False, True, True):
        plain = {"cache_aligned": False}
        policies: dict[str, object] = {"default": {"compress_system_messages": compress, "summarizer": plain}}
        async with stage(tmp_path, policies=policies, **shared) as play:
            assert outcome(await play.send(body(messages)))[0] in ("applied", "reused")
            sent = json.loads(play.sent[-1].body)["messages"]
            assert sent[0] == messages[0]
            assert ({"role": "system", "content": "Be brief from here on."} in sent) != compress
            calls.append(play.model.summary_calls)
            prompts = str([call.body for call in play.model.received if call.is_summary])
            assert ("Be brief from here on." in prompts) == (compress and play.model.summary_calls > 0)
    assert calls == [1, 1, 0]


@pytest.mark.requirement("R3 6.1 maximum")
async def test_what_no_summary_can_help_is_warned_of_once(tmp_path: Path) -> None:
    system = {"role": "system", "content": "rule " * 6_200}
    async with stage(tmp_path) as play:
        agent = Agent(system=None, messages=[system])
        agent.says(CONTENT)
        for _ in range(12):
            await play.send(body(agent.works()))
        assert len(play.logged("irreducible")) == 1
        assert play.model.summary_calls == 0
        assert CONTENT not in str(play.logged("irreducible"))


@pytest.mark.requirement("R3 6.1 maximum")
async def test_a_ladder_that_ends_in_vain_is_warned_of(tmp_path: Path) -> None:
    async with stage(tmp_path, ModelServer(window=60), policies={"default": {"summarizer": {"model": "none"}}}) as play:
        reply = await play.send(body(history(0.5)))
        assert (reply.status, b"context_length_exceeded" in reply.body) == (400, True)
        (warned,) = play.logged("max_iterations")
        assert (warned["level"], warned["tenant"]) == ("warning", "default")


async def test_the_state_of_a_conversation_can_be_seen(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        await play.send(body(history(0.95)))
        told = await play.send(body(history(0.97)), path="/v1/compaction/explain")
        lineage = json.loads(told.body)["lineage"]
        assert (lineage["compactions"], lineage["failures"], lineage["calls"]) == (1, 0, 1)
        (entry,) = lineage["history"]
        assert (entry["trigger"], entry["algorithm"]) == ("tool_execution", "single")
        assert entry["tokens_after"] < entry["tokens_before"]
        fresh = await play.send(body(history(0.5)), path="/v1/compaction/explain")
        assert json.loads(fresh.body)["lineage"] is None
        await asyncio.sleep(0)
