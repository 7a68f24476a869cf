"""What a provider's prompt cache reads of a session's prompts, in every dialect, and a head that breaks it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from proxy.dialects import json_array
from tests.support.dialects import WRITERS
from tests.support.model_server import ModelServer
from tests.support.prompt_caches import LOOK_BACK, PromptCache, marked
from tests.support.scenarios import RULES, WINDOW, most_calls, usable
from tests.support.worlds import MESSAGES, SYSTEM, Talk, session, world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.dialects import Writer
    from tests.support.model_server import ReceivedRequest

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LARGE = 65_536
# In which a session is compacted twice.
SMALLER = 40_960
in_each = pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)


@in_each
async def test_a_prompt_cache_reads_most_of_what_is_sent(tmp_path: Path, writer: Writer) -> None:
    """Though the conversation is compacted meanwhile."""
    models = [{"match": "*", "context_window": LARGE}]
    cache = PromptCache(writer.dialect)
    async with world(tmp_path, writer, ModelServer(window=LARGE), models=models) as play:
        for history in session(Talk(words=900)):
            body = play.body(history)
            body = marked(body) if writer.dialect is MESSAGES else body
            play.check(body, await play.post(body))
            cache.take(play.sent[-1].body)
        assert 0 < play.calls <= most_calls(play.replies[-1].received, usable(LARGE))
    assert cache.read >= 0.85 * cache.prompts


@in_each
async def test_a_head_that_changes_with_every_request_costs_no_summary_more(tmp_path: Path, writer: Writer) -> None:
    async with world(tmp_path, writer) as play:
        for number, history in enumerate(session(Talk())):
            play.system = f"{SYSTEM} This is request {number}."
            await play.send(history)
            assert play.system in play.sent[-1].received.body.decode()
        assert 0 < play.calls <= most_calls(play.replies[-1].received, usable(WINDOW))
        assert all(rule in play.sent[-1].texts for rule in RULES)


async def received_in(
    directory: Path, writer: Writer, *, aligned: bool, is_marked: bool = False
) -> list[ReceivedRequest]:
    """Every prompt that the model got of a session, its summaries among them."""
    models = [{"match": "*", "context_window": SMALLER}]
    policies = {"default": {"summarizer": {"cache_aligned": aligned}}}
    server = ModelServer(window=SMALLER)
    async with world(directory, writer, server, models=models, policies=policies) as play:
        for history in session(Talk(words=900)):
            body = play.body(history, tool_choice={"type": "auto"} if writer.dialect is MESSAGES else "auto")
            body = marked(body) if is_marked else {**body, "metadata": {"session_id": "s"}, "prompt_cache_key": "k"}
            await play.post(body)
    assert {received.status for received in server.received} == {200}
    return list(server.received)


@in_each
@pytest.mark.parametrize(("aligned", "least", "most"), [(True, 0.85, 1.0), (False, 0.0, 0.06)])
async def test_a_question_behind_the_prompt_is_read_from_the_cache_and_a_plain_one_is_not(
    tmp_path: Path, writer: Writer, least: float, most: float, *, aligned: bool
) -> None:
    cache, shares = PromptCache(writer.dialect), []
    for received in await received_in(tmp_path, writer, aligned=aligned, is_marked=writer.dialect is MESSAGES):
        share = cache.take(json.loads(received.body))
        shares += [share] if received.is_summary else []
    assert len(shares) >= 2
    assert all(least <= share <= most for share in shares), shares


@in_each
async def test_before_a_question_behind_the_prompt_stands_what_was_sent_byte_for_byte(
    tmp_path: Path, writer: Writer
) -> None:
    sent: list[ReceivedRequest] = []
    asked = 0
    for received in await received_in(tmp_path, writer, aligned=True):
        if received.is_summary:
            asked += 1
            assert any(_goes_on_from(writer, one, received) for one in sent[-2:])
        else:
            sent.append(received)
    assert asked >= 2


def _goes_on_from(writer: Writer, sent: ReceivedRequest, asked: ReceivedRequest) -> bool:
    (before, fields), (question, others) = _taken_apart(writer, sent), _taken_apart(writer, asked)
    same = ("model", "tools", "system", "instructions", "prompt_cache_key")
    unchanged = all(fields.get(name) == others.get(name) for name in same)
    return unchanged and len(question) > 10 and question[:-1] == before[: len(question) - 1]


def _taken_apart(writer: Writer, received: ReceivedRequest) -> tuple[list[bytes], dict[str, bytes]]:
    parsed = json_array.parse(received.body, writer.dialect.array)
    assert parsed is not None
    return [received.body[first:last] for first, last in parsed.spans], json_array.members_of(received.body)


@in_each
async def test_the_simulated_cache_misses_what_differs_in_one_byte(tmp_path: Path, writer: Writer) -> None:
    prompts = await received_in(tmp_path, writer, aligned=True, is_marked=writer.dialect is MESSAGES)
    first = next(at for at, received in enumerate(prompts) if received.is_summary)
    shares = []
    for change in ((b"", b""), (b"read_file", b"read_fild"), (b"I read on.", b"I read on,")):
        cache = PromptCache(writer.dialect)
        for received in prompts[:first]:
            cache.take(json.loads(received.body))
        shares.append(cache.take(json.loads(prompts[first].body.replace(*change, 1))))
    assert shares[0] >= 0.85
    assert max(shares[1:]) < 0.85


async def test_the_simulated_cache_looks_back_over_twenty_blocks_from_a_mark() -> None:
    said = [{"role": "user", "content": str(number)} for number in range(LOOK_BACK + 2)]
    for more, is_read in ((LOOK_BACK, True), (LOOK_BACK + 1, False)):
        cache = PromptCache(MESSAGES)
        for end in (1, 1 + more):
            body = marked({"system": SYSTEM, "messages": said[:end]})
            body["system"] = SYSTEM
            cache.take(body)
        assert (cache.read > 0) == is_read
