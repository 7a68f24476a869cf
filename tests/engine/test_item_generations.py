"""Histories that go on behind item after item: nothing that the user said is lost, and strict servers take them."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from proxy.api.head import ApiHead
from proxy.callers.tenants import Tenants
from proxy.dialects.base import Dialect
from proxy.dialects.table import MESSAGES, RESPONSES
from proxy.engine.case import CompactionContext, case_of
from proxy.engine.client_compaction.expansion import Settled
from proxy.engine.client_compaction.making import Made
from proxy.observing.log import Log
from proxy.stores.memory import MemoryStore
from proxy.upstream.http import UpstreamClient
from proxy.wiring import open_engine
from tests.support import strict_messages, strict_responses
from tests.support.items import HEAD, asked, rounds, said, told, uses
from tests.support.servers import configured

if TYPE_CHECKING:
    from proxy.config.loading import Config
    from proxy.engine.engine import Engine

Json = dict[str, object]

NO_MODEL = {"summarizer": {"model": "none"}}
WINDOW = 60_000
SAID = [
    "Never touch legacy/, whatever happens.",
    "请不要修改 legacy 目录。",
    "Call the release Heron-{n}.",
    "In src/mod{n}.py keep the name handle_{n}.",
    "Die Tests laufen nur mit make prüfe.",
    "Prefer tabs in Makefiles; never spaces.",
]


@dataclass(frozen=True)
class Bench:
    config: Config
    engine: Engine

    def run(self, dialect: Dialect, items: list[Json]) -> tuple[list[Json], CompactionContext, Settled]:
        """What goes upstream for these items, and what it was read as."""
        return asyncio.run(self._read(dialect, items))

    async def _read(self, dialect: Dialect, items: list[Json]) -> tuple[list[Json], CompactionContext, Settled]:
        caller, router = Tenants(self.config).identify(None), self.engine.router(self.config)
        body = asked(items) if dialect is RESPONSES else told(items)
        raw = await self.engine.reader.read(body, caller.scope, router.encoding, dialect)
        assert raw is not None
        settled = self.engine.clients.expander.settle(raw, caller.tenant, is_ours=True)
        read = await self.engine.reader.read(settled.body, caller.scope, router.encoding, dialect)
        assert read is not None
        request = structs.replace(settled.carried_in(read), is_ours=True)
        head = ApiHead("POST", "/", []).asking(dialect)
        return json.loads(settled.body)[dialect.array.name], case_of(head, router, caller, "on", request), settled

    def made(self, case: CompactionContext, settled: Settled) -> Made:
        return asyncio.run(self.engine.clients.maker.make(case, settled.covers))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Bench]]:
    with ThreadPoolExecutor(1) as workers:
        rule = {"match": "*", "context_window": WINDOW, "encoding": "o200k_base"}
        config = configured(tmp_path_factory.mktemp("bench"), {"models": [rule], "policies": {"default": NO_MODEL}})

        def opened() -> Bench:
            log = Log("error", time.time, io.BytesIO())
            return Bench(config, asyncio.run(open_engine(config, MemoryStore(), UpstreamClient(), workers, log)))

        yield opened


GENERATIONS = st.lists(
    st.lists(st.tuples(st.integers(0, len(SAID) - 1), st.integers(1, 6)), min_size=1, max_size=4),
    min_size=3,
    max_size=5,
)
KEEPS = st.sampled_from(["users", "all", "nothing"])
SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def steps(generation: list[tuple[int, int]], number: int, dialect: Dialect) -> tuple[list[Json], list[str]]:
    """What the user says and the agent does between two items; it ends with a result that has no answer yet."""
    items: list[Json] = []
    sentences = []
    for place, (which, count) in enumerate(generation):
        sentence = SAID[which].format(n=10 * number + place)
        sentences.append(sentence)
        start = 1_000 * number + 10 * place
        answer: Json = {"role": "assistant", "content": f"That was step {place}."}
        if dialect is RESPONSES:
            items += [{"type": "message", **answer}, said(sentence), *rounds(count, start, 150)]
        else:
            items += [answer] if items else []
            items += [{"role": "user", "content": sentence}, *uses(count, start, 150)]
    return items, sentences


def is_user(item: Json) -> bool:
    return item.get("role") == "user" and "tool_result" not in json.dumps(item)


@given(GENERATIONS, KEEPS)
@SLOW
def test_nothing_the_user_said_is_lost_behind_responses_items(
    bench: Callable[[], Bench], generations: list[list[tuple[int, int]]], keeps: str
) -> None:
    """keeps: what a client sends beside the item: its user's messages (codex, the endpoint), all of its history (a
    threshold), or nothing."""
    used, history, sentences = bench(), [HEAD], list[str]()
    for number, generation in enumerate(generations):
        more, heard = steps(generation, number, RESPONSES)
        history, sentences = [*history, *more], [*sentences, *heard]
        sent, case, settled = used.run(RESPONSES, history)
        check(sent, sentences, more[-2:], strict_responses.defects(json.loads(asked(sent))))
        made = used.made(case, settled)
        item = {"type": "compaction", "id": f"cmp_{number}", "encrypted_content": made.sealed}
        kept = {"users": [HEAD, *filter(is_user, history)], "all": history, "nothing": [HEAD]}[keeps]
        history = [*kept, item]
        sent, _, again = used.run(RESPONSES, history)
        check(sent, sentences, more[-2:], strict_responses.defects(json.loads(asked(sent))))
        assert again.record is not None
        assert sent.count(HEAD) == 1
        assert made.tokens <= max(1_240, case.conversation.tokens_from[0] // 4 + 40)
        assert len(made.sealed) <= max(21_000, 8 * made.tokens)


@given(GENERATIONS)
@SLOW
def test_nothing_the_user_said_is_lost_behind_messages_blocks(
    bench: Callable[[], Bench], generations: list[list[tuple[int, int]]]
) -> None:
    used, history, sentences = bench(), list[Json](), list[str]()
    for number, generation in enumerate(generations):
        more, heard = steps(generation, number, MESSAGES)
        history, sentences = [*history, *more], [*sentences, *heard]
        sent, case, settled = used.run(MESSAGES, history)
        made = used.made(case, settled)
        block = {"type": "compaction", "content": made.item.record.text, "encrypted_content": made.sealed}
        history = [*history, {"role": "assistant", "content": [block, {"type": "text", "text": f"Step {number}."}]}]
        sent, _, _ = used.run(MESSAGES, [*history, {"role": "user", "content": "Go on."}])
        check(sent, sentences, more[-2:], strict_messages.defects(json.loads(told(sent))))


def check(sent: list[Json], sentences: list[str], newest: list[Json], defects: list[str]) -> None:
    text = json.dumps(sent, ensure_ascii=False)
    assert not [sentence for sentence in sentences if sentence not in text]
    assert all(item in sent for item in newest), "the result that the model has not seen"
    assert defects == []
    assert "ccn1." not in text
