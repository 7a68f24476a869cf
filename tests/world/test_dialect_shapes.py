"""What only some dialects have, on the same stage: thinking, reasoning, loaded tools, instructions, marks, state.

And what each dialect says otherwise: overflows, counts, refusals that nobody foresaw, credentials.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from proxy.dialects.table import MESSAGES
from tests.support.dialects import WRITERS, Called, Entry, Style, model, results, user
from tests.support.model_server import Fault, answers
from tests.support.prompt_caches import PromptCache
from tests.support.scenarios import FIRST, MODEL, WINDOW, most_calls, prose, usable
from tests.support.strict_messages import Signer, marks
from tests.support.worlds import Talk, prefix_reuse, session, told, world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.conversations import Json
    from tests.support.dialects import Writer
    from tests.support.worlds import World

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

B = usable(WINDOW)
OF = {writer.dialect.name: writer for writer in WRITERS}
in_each = pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
in_two = pytest.mark.parametrize("name", ["responses", "messages"])


# Parallel calls.


@pytest.mark.requirement("D 1")
@in_each
async def test_no_result_of_parallel_calls_is_orphaned(tmp_path: Path, writer: Writer) -> None:
    talk = Talk(words=60)
    async with world(tmp_path, writer) as play:
        await play.send(talk.says(FIRST))
        for _ in range(40):
            await play.send(talk.works(calls=4))
        assert 0 < play.calls <= most_calls(play.replies[-1].received, B)


async def test_outputs_may_stand_between_calls_and_come_late(tmp_path: Path) -> None:
    writer = OF["responses"]
    talk = Talk()
    async with world(tmp_path, writer) as play:
        await play.send(talk.says(FIRST))
        for number in range(40):
            made = [writer.items(model("", Called(f"{kind}{number}")), Style())[0] for kind in "abc"]
            told_now = [writer.items(results(**{f"{kind}{number}": prose(number, 70)}), Style())[0] for kind in "abc"]
            talk.history += [made[0], told_now[0], made[1], made[2], told_now[1]]
            # What answers the third call comes a whole round later now and then.
            if number % 3 == 0:
                talk.works()
                talk.history.append(model("That one took its time."))
            talk.history.append(told_now[2])
            await play.send(talk.history)
        assert 0 < play.calls <= most_calls(play.replies[-1].received, B)


@pytest.mark.requirement("D 2")
async def test_words_beside_results_stay_and_their_results_do_not(tmp_path: Path) -> None:
    """As Claude Code sends them after an interrupt."""
    talk = Talk()
    async with world(tmp_path, OF["messages"]) as play:
        await play.send(talk.says(FIRST))
        for number in range(40):
            talk.works()
            if number % 10 == 5:
                entry = talk.history[-1]
                assert isinstance(entry, Entry)
                (message,) = OF["messages"].items(entry, Style())
                message["content"].append({"type": "text", "text": f"Never touch the file number-{number}."})
                talk.history[-1] = message
            await play.send(talk.history)
        assert 0 < play.calls <= most_calls(play.replies[-1].received, B)
        assert all(f"number-{number}" in play.sent[-1].texts for number in (5, 15, 25, 35))


# Reasoning.


@pytest.mark.requirement("D 3")
async def test_reasoning_that_a_client_drops_half_way_costs_no_summary(tmp_path: Path) -> None:
    talk = Talk()
    with_reasoning, without = Style(thinking=True), Style()
    async with world(tmp_path, OF["responses"]) as play:
        requests = session(talk, requests=60)
        await play.play((next(requests) for _ in range(40)), with_reasoning)
        calls = play.calls
        assert calls > 0
        reply = await play.send(talk.history, without)
        assert (told(reply)[0], play.calls) == ("reused", calls)
        reply = await play.send(talk.history, with_reasoning)
        assert (told(reply)[0], play.calls) == ("reused", calls)
        await play.play(requests, without)
        assert play.calls <= most_calls(play.replies[-1].received, B)


async def test_an_error_of_encrypted_content_passes(tmp_path: Path) -> None:
    refusal = answers.error(
        400,
        "The encrypted content could not be verified.",
        kind="invalid_request_error",
        code="invalid_encrypted_content",
    )
    refused = [False]
    async with world(tmp_path, OF["responses"], more=lambda *_: Fault(refusal) if refused[0] else None) as play:
        talk = Talk()
        await play.send(talk.says(FIRST), Style(thinking=True))
        refused[0] = True
        reply = await play.post(play.body(talk.works(), Style(thinking=True)))
    assert (reply.status, reply.body) == (400, refusal.chunks[0])


# Thinking.


class Thinker:
    """A client of models that think: what they answer begins with thinking, signed for the prompt that was sent."""

    adds = ""

    def __init__(self, play: World, signer: Signer, thinks: Callable[[int], bool] = lambda _: True) -> None:
        self.play = play
        self.talk = Talk()
        self._signer = signer
        self._thinks = thinks

    async def says(self, text: str, **more: object) -> None:
        await self.play.send(self.talk.says(text), **more)

    async def works(self, **more: object) -> None:
        """What the newest answer was, and what comes after it."""
        number = len(self.talk.history)
        thought = self._signer.sign(self.play.sent[-1].body, f"thought {number}")
        self.talk.works()
        call = self.talk.history[-2]
        assert isinstance(call, Entry)
        (message,) = self.play.writer.items(replace(call, text=f"{call.text}{self.adds}"), Style())
        thoughts = [thought] if self._thinks(number) else []
        self.talk.history[-2] = {**message, "content": [*thoughts, *message["content"]]}
        await self.play.send(self.talk.history, **more)


ENABLED: Json = {"thinking": {"type": "enabled", "budget_tokens": 1_024}, "max_tokens": 1_500}


@pytest.mark.parametrize(
    ("asked", "thinks"),
    [
        (ENABLED, lambda _: True),
        ({"thinking": {"type": "adaptive"}}, lambda number: number % 4 == 1),
    ],
    ids=["interleaved", "adaptive"],
)
async def test_thinking_that_nothing_binds_stays_with_its_loop(
    tmp_path: Path, asked: Json, thinks: Callable[[int], bool]
) -> None:
    async with world(tmp_path, OF["messages"]) as play:
        client = Thinker(play, Signer(), thinks)
        await client.says(FIRST, **asked)
        for number in range(45):
            if number % 15 == 14:
                await client.says(f"Go on with part {number}.", **asked)
            await client.works(**asked)
        assert play.calls > 0
        assert '"thinking"' in play.sent[-1].texts


@pytest.mark.requirement("D 6")
async def test_thinking_only_first_in_the_turn(tmp_path: Path) -> None:
    """The newest turn takes more than is kept of a history, and is not parted from its thinking all the same."""
    async with world(tmp_path, OF["messages"]) as play:
        first = [True]
        client = Thinker(play, Signer(), lambda _: first[0])
        for turn in range(4):
            await client.says(f"{FIRST}\nPart {turn}." if turn == 0 else f"Part {turn}.", **ENABLED)
            for number in range(18):
                first[0] = number == 0
                await client.works(**ENABLED)
        assert play.calls > 0


@pytest.mark.requirement("D 6")
@pytest.mark.parametrize("rounds", [45, 90], ids=["one compaction", "several compactions"])
async def test_bound_thinking_costs_one_refusal_for_a_place(tmp_path: Path, rounds: int) -> None:
    signer = Signer()
    async with world(tmp_path, OF["messages"], signer=signer) as play:
        client = Thinker(play, signer)
        await client.says(FIRST)
        for _ in range(rounds):
            await client.works()
        assert 0 < play.calls <= most_calls(play.replies[-1].received, B)
        assert play.provider.thinking_refused == 1
        assert '"thinking"' in play.sent[-1].texts


async def test_bound_thinking_is_left_out_beside_halves_of_emoji(tmp_path: Path) -> None:
    signer = Signer()
    async with world(tmp_path, OF["messages"], signer=signer) as play:
        client = Thinker(play, signer)
        client.adds = " \ud83d"
        await client.says(FIRST)
        for _ in range(45):
            await client.works()
        assert play.provider.thinking_refused == 1
        sent = json.dumps(play.sent[-1].items)
        assert sent.count('"I read on. \\ud83d"') > sent.count('"thinking": "thought') > 0


async def test_bound_thinking_before_a_batch_of_short_forms(tmp_path: Path) -> None:
    signer = Signer()
    policies = {"default": {"large_messages": {"threshold": 300, "hot_rounds": 2}}}
    async with world(tmp_path, OF["messages"], signer=signer, policies=policies) as play:
        client = Thinker(play, signer)
        client.talk.words = 400
        await client.says(FIRST)
        for _ in range(40):
            await client.works()
        assert play.calls > 0
        assert "cooled" in {outcome for outcome, _ in play.outcomes}
        assert any("shortened by the gateway" in sent.texts for sent in play.sent)
        assert play.provider.thinking_refused == 1


@pytest.mark.parametrize("huge", [0, 6], ids=["first", "later"])
async def test_bound_thinking_beside_a_result_that_fits_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, huge: int
) -> None:
    """It is cut to its beginning and end, with a record and without one; nobody has to refuse that first."""
    signer, known = Signer(), "claude-opus-5-5"
    policies = {"default": {"large_messages": {"threshold": 300, "hot_rounds": 2}}}
    async with world(tmp_path, OF["messages"], signer=signer, policies=policies) as play:
        client = Thinker(play, signer)
        await client.says(FIRST, model=known)
        for number in range(30):
            client.talk.words = 9_000 if number == huge else 120
            with monkeypatch.context() as patched:
                if number == huge:  # it is not sent as it came
                    patched.setattr(play, "check", lambda *_: None)
                await client.works(model=known)
        assert "too_large" in {reason for _, reason in play.outcomes}
        assert play.provider.thinking_refused == 0


async def test_bound_thinking_behind_quotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is quoted in front of a question stays there, so thinking that came behind it holds."""
    signer, known = Signer(), "claude-opus-5-5"
    async with world(tmp_path, OF["messages"], signer=signer) as play:
        client = Thinker(play, signer)
        client.talk.history += [user(FIRST), model("The spare key of the boathouse hangs behind the third oar.")]
        await client.says("Begin.", model=known)
        for number in range(50):
            if number == 35:
                with monkeypatch.context() as patched:  # it is not sent as it came
                    patched.setattr(play, "check", lambda *_: None)
                    await client.says("Where does the spare key of the boathouse hang?", model=known)
                assert "<recalled>" in play.sent[-1].texts
            await client.works(model=known)
        assert play.provider.thinking_refused == 0
        assert '"thinking"' in play.sent[-1].texts


async def test_bound_thinking_of_a_fork(tmp_path: Path) -> None:
    signer = Signer()
    async with world(tmp_path, OF["messages"], signer=signer) as play:
        client = Thinker(play, signer)
        await client.says(FIRST)
        for _ in range(35):
            await client.works()
        left = client.talk.fork("left")
        for _ in range(10):
            await client.works()
        client.talk = left
        for _ in range(10):
            await client.works()
        assert play.provider.thinking_refused <= 2


async def test_a_lost_store_costs_one_refusal_more(tmp_path: Path) -> None:
    """What was removed is in the client's history still, and nothing says any more that it was."""
    signer = Signer()
    async with world(tmp_path, OF["messages"], signer=signer, store={"url": "memory://"}) as play:
        client = Thinker(play, signer)
        await client.says(FIRST)
        for _ in range(40):
            await client.works()
        assert play.calls > 0
    async with world(tmp_path, OF["messages"], signer=signer, store={"url": "memory://"}) as play:
        await play.send(client.talk.history)
        client.play = play
        for _ in range(10):
            await client.works()
        assert play.provider.thinking_refused == 1


# Instructions inside the conversation.


def left(number: int) -> Json:
    return {"role": "system", "content": f"<total_tokens>{200_000 - 71 * number} tokens left</total_tokens>"}


@pytest.mark.requirement("D 4")
async def test_instructions_after_every_result_are_sent_once_and_last(tmp_path: Path) -> None:
    talk = Talk()
    async with world(tmp_path, OF["messages"]) as play:
        await play.send(talk.says(FIRST))
        for number in range(200):
            talk.works()
            talk.history.append(left(number))
            await play.send(talk.history)
        assert 0 < play.calls <= most_calls(play.replies[-1].received, B)
        assert prefix_reuse(play.sent) >= 0.90
        for sent in play.sent:
            # Of covered ones the newest alone, and as many as there are rounds in the tail.
            rounds = sum(item["role"] == "assistant" for item in sent.items)
            assert sum(item["role"] == "system" for item in sent.items) <= rounds + 1


async def test_instructions_that_change_tools_all_stay(tmp_path: Path) -> None:
    talk = Talk()
    async with world(tmp_path, OF["messages"]) as play:
        await play.send(talk.says(FIRST))
        for number in range(60):
            talk.works()
            if number in (3, 9):
                added = {"type": "tool_addition", "tool": {"name": f"late_{number}"}}
                talk.history.append({"role": "system", "content": [added]})
            elif number == 5:
                talk.history.append({"role": "system", "content": "Be quick.", "clear_at": "next_user_message"})
            await play.send(talk.history)
        assert play.calls > 0
        assert all(play.sent[-1].texts.count(f"late_{number}") == 1 for number in (3, 9))


# Tools that were loaded.


@pytest.mark.requirement("D 7")
async def test_a_tool_that_was_loaded_early_stays_loaded(tmp_path: Path) -> None:
    """Loaded twice, it is in force once; never without the call that loaded it."""
    writer = OF["messages"]
    talk = Talk()
    async with world(tmp_path, writer) as play:
        await play.send(talk.says(FIRST))
        for number in range(60):
            talk.works()
            if number in (2, 8, 20):
                call = talk.history[-1]
                assert isinstance(call, Entry)
                (message,) = writer.items(call, Style())
                tool = "Deploy" if number < 20 else "Notify"
                message["content"][0]["content"] = [{"type": "tool_reference", "tool_name": tool}]
                talk.history[-1] = message
            await play.send(talk.history)
        assert play.calls > 0
        assert [play.sent[-1].texts.count(f'"{tool}"') for tool in ("Deploy", "Notify")] == [1, 1]


@pytest.mark.requirement("D 7")
async def test_items_that_load_tools_stay_in_force(tmp_path: Path) -> None:
    talk = Talk()
    tool = {"type": "function", "name": "deploy", "parameters": {}}
    async with world(tmp_path, OF["responses"]) as play:
        await play.send(talk.says(FIRST))
        for number in range(60):
            if number == 2:
                talk.history.append({"type": "additional_tools", "role": "developer", "tools": [tool]})
            if number in (4, 8):
                search = {"type": "tool_search_call", "call_id": f"s{number}", "arguments": {"query": "notify"}}
                found = {"type": "tool_search_output", "call_id": f"s{number}", "tools": [{**tool, "name": "notify"}]}
                talk.history += [search, found]
            await play.send(talk.works())
        assert play.calls > 0
        texts = play.sent[-1].texts
        assert [texts.count('"name": "deploy"'), texts.count('"name": "notify"')] == [1, 1]


# Marks.

EPHEMERAL: Json = {"cache_control": {"type": "ephemeral"}}
HOUR: Json = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


async def test_a_mark_on_the_whole_request_passes(tmp_path: Path) -> None:
    async with world(tmp_path, OF["messages"]) as play:
        await play.play(session(Talk()), **EPHEMERAL)
        assert play.calls > 0
        assert {tuple(marks(sent.body)) for sent in play.sent} == {("5m",)}


def marked(body: Json, places: tuple[int, ...], mark: Json) -> Json:
    """With a mark on the last block of these messages; a content that is a text becomes a list of one."""
    messages = [dict(message) for message in body["messages"]]
    for place in places:
        if len(messages) < -place:
            continue
        content = messages[place]["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else [*content]
        messages[place]["content"] = [*blocks[:-1], {**blocks[-1], **mark}]
    system = [{"type": "text", "text": body["system"], **mark}]
    return {**body, "system": system, "messages": messages}


@pytest.mark.parametrize("large", [300, 100_000], ids=["short forms", "whole"])
@pytest.mark.parametrize(
    ("places", "mark"),
    [((-1,), EPHEMERAL), ((-1, -2), EPHEMERAL), ((-2,), EPHEMERAL), ((-1, -3), HOUR)],
    ids=["on the last", "on the last two", "on a tool_use", "for an hour"],
)
async def test_moving_marks_are_the_clients_own(
    tmp_path: Path, places: tuple[int, ...], mark: Json, large: int
) -> None:
    policies = {"default": {"large_messages": {"threshold": large, "hot_rounds": 2}}}
    async with world(tmp_path, OF["messages"], policies=policies) as play:
        for history in session(Talk(words=350 if large == 300 else 150)):
            body = marked(play.body(history), places, mark)
            play.check(body, await play.post(body))
            # None is ours, and none comes back with a form that was frozen.
            assert marks(play.sent[-1].body) == marks(body)
        assert play.calls > 0
        assert large == 300 or prefix_reuse(play.sent) >= 0.90


@pytest.mark.parametrize(("name", "ours"), [("claude-sonnet-4-5", 2), (MODEL, 0)])
async def test_of_claude_head_and_record_are_marked_where_the_client_marks_nothing(
    tmp_path: Path, name: str, ours: int
) -> None:
    """They are in the provider's cache from the next request on; what came without a record goes out as it came."""
    async with world(tmp_path, OF["messages"], models=[{"match": "*", "context_window": WINDOW}]) as play:
        replies = await play.play(session(Talk()), model=name)
        assert play.calls > 0
        assert prefix_reuse(play.sent) >= 0.90
        cache, served = PromptCache(MESSAGES), []
        for reply, sent in zip(replies, play.sent, strict=True):
            outcome, _ = told(reply)
            assert len(marks(sent.body)) == (ours if outcome in ("applied", "reused") else 0)
            share = cache.take(sent.body)
            served += [share > 0.03] if outcome == "reused" else []
        # The head alone is less than a hundredth; a record made ahead is written with its first use.
        assert served.count(bool(ours)) > 0.8 * len(served)
