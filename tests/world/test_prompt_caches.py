"""What a provider's prompt cache reads of a session's prompts, in every dialect, and a head that breaks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from proxy.demo.model_server import ModelServer
from tests.support.dialects import WRITERS
from tests.support.prompt_caches import LOOK_BACK, PromptCache, marked
from tests.support.scenarios import RULES, WINDOW, most_calls, usable
from tests.support.worlds import MESSAGES, SYSTEM, Talk, session, world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.dialects import Writer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LARGE = 65_536
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


async def test_the_simulated_cache_looks_back_over_twenty_blocks_from_a_mark() -> None:
    said = [{"role": "user", "content": str(number)} for number in range(LOOK_BACK + 2)]
    for more, is_read in ((LOOK_BACK, True), (LOOK_BACK + 1, False)):
        cache = PromptCache(MESSAGES)
        for end in (1, 1 + more):
            body = marked({"system": SYSTEM, "messages": said[:end]})
            body["system"] = SYSTEM
            cache.take(body)
        assert (cache.read > 0) == is_read
