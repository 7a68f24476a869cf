"""What `explain` says is what the next real request does; it asks nobody, writes nothing and shows nobody else's."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from policies.price import Payoff, payoff_of
from proxy.callers.api_head import ApiHead
from proxy.callers.tenants import Tenants
from proxy.compaction.explain.explainer import explain
from proxy.compaction.explain.explanation import Explanation
from proxy.compaction.plan_input import Mode, PlanInput, plan_input_of
from proxy.compaction.planner import prompt_or_original
from proxy.compaction.prompt import Prompt
from proxy.compaction.short_forms import Content, content_key
from proxy.dialects.table import CHAT
from proxy.sessions.stores.memory import MemoryStore
from proxy.telemetry.log import Log
from proxy.upstreams.http import UpstreamClient
from proxy.wiring import Engine, open_engine
from tests.support.scenarios import FIRST, LOUD, MODEL, RULES, Agent, Message, loud, user
from tests.support.servers import configured
from tests.support.stages import (
    CONTENT,
    COUNTED,
    DUE,
    FLOOR,
    MUST,
    SMALL,
    B,
    Stage,
    body,
    history,
    ours,
    outcome,
    stage,
)
from tests.support.upstreams import ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.config.loading import Config
    from tests.support.upstreams import Header, Reply

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
EXPLAIN = "/v1/compaction/explain"
FORCE = (b"x-compaction", b"force")


async def explained(play: Stage, request: bytes, *headers: Header) -> Explanation:
    reply = await play.send(request, *headers, path=EXPLAIN)
    assert (reply.status, dict(reply.headers)[b"content-type"]) == (200, b"application/json")
    return msgspec.json.decode(reply.body, type=Explanation, strict=True)


def runs(explanation: Explanation) -> list[tuple[str, int]]:
    """Consecutive messages of one fate, counted."""
    found: list[tuple[str, int]] = []
    for message in explanation.messages:
        if found and found[-1][0] == message.fate:
            found[-1] = (message.fate, found[-1][1] + 1)
        else:
            found.append((message.fate, 1))
    return found


def loop() -> list[Message]:
    """One user message, then nothing but tools."""
    agent = Agent()
    agent.says(FIRST)
    while len(agent.messages) < 66:
        agent.works()
    return agent.messages


@dataclass(frozen=True)
class Scene:
    """A request, what was sent before it, and what is expected: outcome, reason, the fates in their order."""

    request: bytes
    outcome: str
    reason: str
    fates: tuple[str, ...]
    settings: dict[str, object] = field(default_factory=dict)
    before: tuple[bytes, ...] = ()
    headers: tuple[Header, ...] = ()


def policy(**settings: object) -> dict[str, object]:
    return {"policies": {"default": settings}}


NO_MODEL = {"summarizer": {"model": "none"}}
SCENES = {
    "small": Scene(SMALL, "none", "below_floor", ("kept",)),
    "counted": Scene(COUNTED, "none", "below_floor", ("head", "kept")),
    "floor": Scene(FLOOR, "none", "below_threshold", ("head", "kept")),
    "due": Scene(DUE, "applied", "tool_execution", ("head", "anchor", "summarised", "kept")),
    "must": Scene(MUST, "applied", "tool_execution", ("head", "anchor", "summarised", "kept")),
    "one turn": Scene(body(loop()), "applied", "tool_execution", ("head", "anchor", "summarised", "kept")),
    "standing": Scene(
        body(history(0.95)), "reused", "below_threshold", ("head", "anchor", "covered", "kept"), before=(DUE,)
    ),
    "standing and due": Scene(
        body(history(1.6)),
        "applied",
        "tool_execution",
        ("head", "anchor", "covered", "summarised", "kept"),
        before=(DUE,),
    ),
    "cooled": Scene(
        body(loud(4, small=2)),
        "cooled",
        "below_threshold",
        ("head", "kept", "cooled", "kept", "cooled", "kept"),
        policy(**LOUD, soft_threshold=1, **NO_MODEL),
    ),
    "separator": Scene(
        body([*history(0.85), user("/new"), *history(0.2)[1:]]),
        "applied",
        "separator",
        ("head", "dropped", "kept"),
        policy(separator="/new"),
    ),
    "due behind a separator": Scene(
        body([*history(0.5), user("/new"), {"role": "system", "content": "be brief"}, *history(0.85)[1:]]),
        "applied",
        "tool_execution",
        ("head", "dropped", "summarised", "kept", "anchor", "summarised", "kept"),
        policy(separator="/new"),
    ),
    "unknown window": Scene(
        DUE.replace(MODEL.encode(), b"own"), "none", "unknown_window", ("head", "kept"), {"models": []}
    ),
    "shadow": Scene(
        DUE, "shadow", "would_compact_53_messages", ("head", "anchor", "summarised", "kept"), policy(mode="shadow")
    ),
    "off": Scene(DUE, "bypass", "off", ("head", "anchor", "summarised", "kept"), policy(mode="off")),
    "several choices": Scene(body(history(0.85), n=2), "bypass", "several_choices", ("head", "kept")),
    "stored history": Scene(
        body(history(0.85), previous_response_id="r1"), "bypass", "previous_response_id", ("head", "kept")
    ),
    "forced": Scene(COUNTED, "applied", "manual", ("head", "anchor", "summarised", "kept"), headers=(FORCE,)),
    "less output": Scene(body(history(0.4), max_tokens=7_000), "none", "output_lowered", ("head", "kept")),
    "one message": Scene(body([user("word " * 6_500)]), "none", "nothing_to_compact", ("kept",)),
}


@pytest.mark.requirement("R0 2.2 fallback", "R3 4.1 removed")
@pytest.mark.parametrize("name", SCENES)
async def test_it_says_what_the_next_request_does_and_asks_nobody(tmp_path: Path, name: str) -> None:
    scene = SCENES[name]
    request, headers = scene.request, scene.headers
    async with stage(tmp_path, **scene.settings) as play:
        for before in scene.before:
            assert outcome(await play.send(before))[0] == "applied"
        asked = len(play.model.received)
        explanation = await explained(play, request, *headers)
        assert await explained(play, request, *headers) == explanation
        assert len(play.model.received) == asked
        assert (explanation.outcome, explanation.reason) == (scene.outcome, scene.reason)
        assert tuple(fate for fate, _ in runs(explanation)) == scene.fates
        reply = await play.send(request, *headers)
        assert outcome(reply) == (scene.outcome, scene.reason)
        told = ours(reply)
        assert int(told["tokens-received"]) == explanation.tokens_received
        if explanation.would is None:
            sent, most = int(told["tokens-sent"]), explanation.tokens_sent
            assert sent <= most if explanation.cut else sent == most
        check_sums(explanation, json.loads(request)["messages"])


async def test_the_cut_of_an_unstable_history_is_that_of_a_record_without_a_model(tmp_path: Path) -> None:
    agent, by_model = Agent(words=80), list[bool]()
    agent.says(FIRST)
    async with stage(tmp_path, **policy(soft_threshold=1, summarizer={"target_tokens": 600})) as play:
        while by_model.count(False) < 3:
            agent.works()
            request = body([user(f"Request {len(agent.messages)}.\n{FIRST}"), *agent.messages[1:]])
            explanation = await explained(play, request)
            reply = await play.send(request)
            if explanation.cut is not None:
                made = play.logged("compaction")[-1]
                assert explanation.cut.index == made["covered"]
                by_model.append("model" in made)
    assert by_model == [True, True, False, False, False]
    assert ours(reply)["warning"] == "unstable_history"


async def test_what_a_compaction_saves_and_breaks_is_told_before_and_after(tmp_path: Path) -> None:
    async with stage(tmp_path, **policy(**NO_MODEL, soft_threshold=1)) as play:
        estimate = (await explained(play, DUE)).payoff
        await play.send(DUE)
        await play.settled()
        (made,), request = play.logged("compaction"), play.logged("request")[-1]
        assert (await explained(play, DUE)).payoff is None, "it is done"
    assert estimate is not None
    assert made["removed"] == int(str(made["tokens_before"])) - int(str(made["tokens_after"])) >= estimate.removed
    assert 0 < int(str(made["rewritten"])) < int(str(made["tokens_after"])), "the head is still in the cache"
    assert made["pays_after"] == payoff_of(made["removed"], made["rewritten"]).pays_after
    assert (request["compaction"], "removed" in request) == ("applied", False)


async def test_what_short_forms_save_and_break_is_told_with_the_first_request_that_has_them(tmp_path: Path) -> None:
    scene = SCENES["cooled"]
    async with stage(tmp_path, **scene.settings) as play:
        estimate = (await explained(play, scene.request)).payoff
        for _ in range(2):
            await play.send(scene.request)
        await play.settled()
        first, second = play.logged("request")[-2:]
        assert (await explained(play, scene.request)).payoff is None
    assert estimate is not None
    assert estimate.removed > 1_000
    assert Payoff(first["removed"], first["rewritten"], first["pays_after"]) == estimate
    assert (second["compaction"], "removed" in second) == ("cooled", False)


def check_sums(explanation: Explanation, messages: Sequence[Message]) -> None:
    """Every message once, in order; the parts make up what is received and sent."""
    assert [message.index for message in explanation.messages] == [*range(len(messages))]
    assert [message.role for message in explanation.messages] == [message["role"] for message in messages]
    tools = explanation.tokens_tools
    assert explanation.tokens_received == tools + sum(message.tokens for message in explanation.messages)
    after = sum(message.tokens_after for message in explanation.messages)
    assert explanation.tokens_sent == tools + (explanation.record_tokens or 0) + after
    assert all(message.why for message in explanation.messages)
    anchors = {message.index for message in explanation.messages if message.fate == "anchor"}
    assert anchors.isdisjoint(entry.index for entry in explanation.pinned), "sent whole, so not told again"


@pytest.mark.requirement("R0 2.2 counts", "R0 2.2 strategy")
async def test_the_numbers_it_is_measured_by_and_the_cut(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
    async with stage(tmp_path) as play:
        found = await explained(play, body(history(0.85), tools=tools))
        assert found.window is not None
        assert (found.model, found.policy, found.window.tokens, found.window.source) == (
            MODEL,
            "default",
            8_192,
            "policy",
        )
        assert found.usable == B
        fixed = found.tokens_tools + found.messages[0].tokens
        assert msgspec.to_builtins(found.thresholds) == {
            "floor": fixed + int(0.25 * (B - fixed)),
            "soft": fixed + int(0.7 * (B - fixed)),
            "compaction": fixed + int(0.8 * (B - fixed)),
            "overflow": fixed + int(0.9 * (B - fixed)),
        }
        assert found.tokens_tools > 0
        assert found.cut is not None
        assert (found.cut.level, found.cut.split_strategy) == ("L1", "round-boundary")
        assert found.cut.rounds.total == found.cut.rounds.summarized + found.cut.rounds.kept
        assert found.messages[found.cut.index].fate == "kept"
        assert found.messages[found.cut.index - 1].fate == "summarised"
        assert found.messages[2].tool == found.messages[3].tool == "read_file"


@pytest.mark.requirement("R2 Effect 1", "R3 3.4 title")
async def test_the_words_of_the_user_that_the_record_will_carry(tmp_path: Path) -> None:
    agent = Agent()
    agent.says(FIRST)
    for _ in range(20):
        agent.works()
    agent.says("From now on the error budget is 0.5 percent.")
    for _ in range(20):
        agent.works()
    async with stage(tmp_path) as play:
        request = body(agent.messages)
        found = await explained(play, request)
        said = [entry.text for entry in found.pinned]
        assert RULES[0] in said
        assert RULES[1] not in said
        for entry in found.pinned:
            assert entry.text in str(agent.messages[entry.index]["content"])
        assert outcome(await play.send(request))[0] == "applied"
        sent = play.sent[-1].body.decode()
        assert all(json.dumps(text)[1:-1] in sent for text in said)
        made = found.actions
        again = await explained(play, request)
        standing = again.checkpoint
        assert standing is not None
        assert (standing.generation, standing.trigger, standing.covered) == (1, "tool_execution", _covered(found))
        assert len(standing.timeline) == 1
        assert standing.title.startswith("Summary of conversation from ")
        assert (again.outcome, again.actions, again.record_tokens) == ("reused", made, standing.tokens)
        assert [entry.text for entry in again.pinned] == said


def _covered(explanation: Explanation) -> int:
    """Messages behind the one of the head that the cut takes away."""
    assert explanation.cut is not None
    return explanation.cut.index - 1


@pytest.mark.requirement("R3 4.1 suggestion")
@pytest.mark.parametrize("mode", ["off", "shadow"])
async def test_what_a_policy_that_does_nothing_leaves_undone_is_told(tmp_path: Path, mode: str) -> None:
    async with stage(tmp_path, **policy(mode=mode)) as play:
        found = await explained(play, DUE)
        assert found.would is not None
        assert (found.would.outcome, found.would.reason) == ("applied", "tool_execution")
        assert found.tokens_sent < found.tokens_received
        small = await explained(play, SMALL)
        assert small.tokens_sent == small.tokens_received
        asked = await explained(play, DUE, (b"x-compaction", b"on"))
        assert (asked.outcome, asked.would) == ("applied", None)


async def test_another_policy_may_be_asked_about(tmp_path: Path) -> None:
    settings = policy(mode="off") | {"tenants": {"default": {"policy": "default", "policies": ["chat"]}}}
    async with stage(tmp_path, **settings) as play:
        found = await explained(play, MUST, (b"x-compaction-policy", b"chat"))
        assert (found.policy, found.outcome) == ("chat", "applied")
        reply = await play.send(DUE, (b"x-compaction-policy", b"cost"), path=EXPLAIN)
        assert reply.status == 403


async def test_one_caller_does_not_see_what_another_one_has(tmp_path: Path) -> None:
    def bearer(key: str) -> Header:
        return b"authorization", f"Bearer {key}".encode()

    keys = {name: [f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"] for name in ("acme", "zeta")}
    settings: dict[str, object] = {"tenants": {name: {"keys": hashes} for name, hashes in keys.items()}}
    async with stage(tmp_path, **settings, closed=True) as play:
        assert outcome(await play.send(DUE, bearer("acme")))[0] == "applied"
        own = await explained(play, DUE, bearer("acme"))
        assert (own.outcome, own.checkpoint is None) == ("reused", False)
        other = await explained(play, DUE, bearer("zeta"))
        assert (other.outcome, other.checkpoint) == ("applied", None)
        assert (await play.send(DUE, bearer("nobody"), path=EXPLAIN)).status == 401
        assert (await play.send(DUE, path=EXPLAIN)).status == 401


def error(reply: Reply) -> tuple[int, str]:
    return reply.status, json.loads(reply.body)["error"]["code"]


@pytest.mark.parametrize("path", [EXPLAIN, "/compaction/explain"])
async def test_what_cannot_be_explained_is_refused_as_a_chat_request_would_be(tmp_path: Path, path: str) -> None:
    async with stage(tmp_path, server={"max_body_bytes": 70_000}) as play:
        assert error(await play.send(b"{", path=path)) == (400, "invalid_json")
        assert error(await play.send(b" " * 70_001, path=path)) == (413, "request_too_large")
        assert error(await play.send(SMALL, (b"x-compaction", b"maybe"), path=path)) == (400, "invalid_request")
        strange = await play.send(b'{"model": "m", "input": "hi"}', path=path)
        found = json.loads(strange.body)
        assert (found["outcome"], found["reason"], found["messages"]) == ("bypass", "unknown_shape", [])
        assert not play.model.received
        assert [line["status"] for line in play.logged("request")] == [400, 413, 400, 200]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
async def test_the_path_is_never_relayed(tmp_path: Path, method: str) -> None:
    async with stage(tmp_path) as play:
        reply = await ask(play.address, method, EXPLAIN, [])
        assert error(reply) == (405, "method_not_allowed")
        assert dict(reply.headers)[b"allow"] == b"POST"
        assert not play.model.received


async def test_the_log_says_that_it_was_asked_and_nothing_of_what(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        await explained(play, DUE)
        (line,) = play.logged("request")
        assert (line["status"], line["tenant"], line["end"]) == (200, "default", "complete")
        assert CONTENT not in json.dumps(play.log)
        assert play.logged("compaction") == []


async def test_a_fault_of_ours_is_told_and_goes_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object, **__: object) -> None:
        raise RuntimeError(CONTENT)

    monkeypatch.setattr("proxy.compaction.planner.decide", explode)
    async with stage(tmp_path) as play:
        reply = await play.send(DUE, path=EXPLAIN)
        assert error(reply) == (500, "internal_error")
        assert CONTENT.encode() not in reply.body
        assert not play.model.received


class Watched(MemoryStore):
    """Counts what is written to it."""

    writes = 0

    async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
        self.writes += 1
        return await super().put(key, value, ttl, only_new=only_new)

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        self.writes += 1
        await super().touch(keys, ttl)

    async def lock(self, key: str, token: str, ttl: float) -> bool:
        self.writes += 1
        return await super().lock(key, token, ttl)


@dataclass(frozen=True)
class Bench:
    """An engine over a watched store, without any upstream."""

    config: Config
    engine: Engine
    store: Watched

    async def compare(self, messages: Sequence[Message], mode: Mode) -> tuple[Explanation, Prompt]:
        """What is explained, and what is done with the same request right afterwards."""
        case, explanation = await self.explain(messages, mode)
        return explanation, await self.engine.prompt_builder.build_first(case)

    async def explain(self, messages: Sequence[Message], mode: Mode) -> tuple[PlanInput, Explanation]:
        caller = Tenants(self.config).identify(None)
        router = self.engine.router(self.config)
        request = await self.engine.reader.read(body(messages), caller.scope, router.encoding, CHAT)
        assert request is not None
        case = plan_input_of(ApiHead("POST", "/", []), router, caller, mode, request)
        written = self.store.writes
        explanation = await explain(self.engine, structs.replace(case), request)
        assert self.store.writes == written, "nothing is written"
        check_sums(explanation, messages)
        return await self.engine.prompt_builder.place(case), explanation


Opened = Callable[[dict[str, object]], Bench]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with ThreadPoolExecutor(1) as workers:

        def opened(settings: dict[str, object]) -> Bench:
            rule = {"match": "*", "context_window": 4_096, "encoding": "o200k_base"}
            config = configured(
                tmp_path_factory.mktemp("bench"), {"models": [rule], "policies": {"default": {**NO_MODEL, **settings}}}
            )
            store = Watched()
            log = Log("error", time.time, io.BytesIO())
            engine = asyncio.run(open_engine(config, store, UpstreamClient(), workers, log))
            return Bench(config, engine, store)

        yield opened


STEPS = st.lists(
    st.tuples(st.sampled_from(["says", "works", "works", "many"]), st.integers(5, 700)), min_size=3, max_size=16
)


def play_steps(steps: Sequence[tuple[str, int]]) -> Iterator[list[Message]]:
    """The requests of a session that grows."""
    agent = Agent(name="agent")
    yield agent.says(FIRST)
    for kind, words in steps:
        agent.words = words
        match kind:
            case "says":
                agent.says("Now " + agent.write(words, words))
            case "many":
                agent.works(calls=3)
            case _:
                agent.works()
        yield agent.messages


@pytest.mark.requirement("R1 2.1")
@pytest.mark.parametrize("settings_", [{}, {"large_messages": {"threshold": 200, "hot_rounds": 1, "valve": 0.1}}])
def test_outcome_and_cut_are_those_of_the_draft(bench: Opened, settings_: dict[str, object]) -> None:
    seen: set[str] = set()

    @given(STEPS, st.sampled_from(["on", "on", "shadow", "off"]))
    @settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    def agree(steps: list[tuple[str, int]], mode: Mode) -> None:
        used = bench(settings_)

        async def play() -> None:
            for messages in play_steps(steps):
                explanation, prompt = await used.compare(messages, mode)
                assert (explanation.outcome, explanation.reason) == (prompt.outcome, prompt.reason)
                seen.add(explanation.outcome)
                if mode != "on":
                    continue
                if explanation.cut is not None:
                    assert prompt.record is not None
                    assert explanation.cut.index == 1 + prompt.record.covered
                    assert prompt.tokens <= explanation.tokens_sent
                else:
                    assert explanation.tokens_sent == prompt.tokens
                    assert explanation.record_tokens == (prompt.record and prompt.record.text_tokens)

        asyncio.run(play())

    agree()
    assert {"none", "applied", "reused", "shadow", "bypass"} <= seen
    assert ("cooled" in seen) == bool(settings_)


def test_a_read_only_engine_makes_no_record_and_stores_nothing(bench: Opened) -> None:
    used = bench({"summarizer": {}})

    async def play() -> None:
        case, explanation = await used.explain(history(0.5), "on")
        written, prompt_builder = used.store.writes, used.engine.read_only().prompt_builder
        prompt = await prompt_builder.place_and_build(
            structs.replace(case, chain=structs.replace(case.chain, link=None))
        )
        assert (prompt.outcome, prompt.reason, prompt.body) == ("none", "counted", case.request.body)
        assert used.store.writes == written
        assert explanation.outcome == "applied"
        assert used.engine.read_only().read_only() is used.engine.read_only()

    asyncio.run(play())


def test_a_checkpoint_that_only_this_process_remembers_counts(bench: Opened) -> None:
    used = bench({})

    async def play() -> None:
        assert (
            await used.engine.prompt_builder.build_first((await used.explain(history(0.5), "on"))[0])
        ).outcome == "applied"
        for key in [key for key in used.store._entries if not key.startswith("epoch:")]:
            used.store._drop(key)
        explanation, prompt = await used.compare(history(0.51), "on")
        assert (explanation.outcome, prompt.outcome) == ("reused", "reused")
        assert explanation.checkpoint is not None

    asyncio.run(play())


def test_a_short_form_that_is_not_frozen_yet_is_not_remembered(bench: Opened) -> None:
    used = bench({**LOUD, "large_messages": {"threshold": 400, "hot_rounds": 1}})
    messages = loud(4, tokens=600, small=2)

    async def play() -> None:
        case, before = await used.explain(messages, "on")
        (first, *_) = [message.index for message in before.messages if message.fate == "cooled"]
        short_forms = used.engine.prompt_builder._shortener.short_forms
        await short_forms.keep_summary(content_key(case, Content(first - 1, 0)), "nothing new in it")
        after, prompt = await used.compare(messages, "on")
        assert after.tokens_sent == prompt.tokens < before.tokens_sent

    asyncio.run(play())


def test_looking_at_a_checkpoint_of_another_process_does_not_prolong_its_life(bench: Opened) -> None:
    used = bench({})

    async def play() -> None:
        await used.engine.prompt_builder.build_first((await used.explain(history(0.5), "on"))[0])
        used.engine.memory.most = 0
        _, explanation = await used.explain(history(0.51), "on")
        assert explanation.outcome == "reused"

    asyncio.run(play())


def test_a_checkpoint_that_outweighs_what_it_covers_is_not_used(bench: Opened) -> None:
    used = bench({})

    async def play() -> None:
        case, _ = await used.explain(history(0.5), "on")
        prompt = await used.engine.prompt_builder.build_first(case)
        assert prompt.record is not None
        assert prompt_or_original(case, prompt) is prompt
        heavy = prompt_or_original(case, structs.replace(prompt, tokens=case.request.tokens))
        assert (heavy.outcome, heavy.reason, heavy.record) == ("none", "no_gain", None)
        assert heavy.body is case.request.body

    asyncio.run(play())


async def test_it_says_that_a_forced_compaction_gained_nothing_and_asks_for_none(tmp_path: Path) -> None:
    words = "We keep the port of the staging server where it is, and look at the log."
    request = body([{"role": role, "content": words} for _ in range(6) for role in ("user", "assistant")])
    forced = (b"x-compaction", b"force")
    async with stage(tmp_path) as play:
        before = await explained(play, request, forced)
        await play.send(request, forced)
        after = await explained(play, request, forced)
    assert (before.outcome, before.reason) == ("applied", "manual")
    assert (after.outcome, after.reason) == ("none", "no_gain")
