"""Upstreams are asked for the windows of their models: behind the answers, seldom, and with what they may know."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from proxy.config.settings import Upstream as Settings
from proxy.models.table import ModelTable
from proxy.models.windows import ModelKey, Windows
from proxy.sessions.stores import Sealer
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import SealedStore
from proxy.upstreams.asker import INTERVAL, WindowAsker
from proxy.upstreams.http import UpstreamClient
from proxy.upstreams.models_list import window_of_props, window_of_show, windows_of_list
from tests.support.clock import Clock
from tests.support.upstreams import CHAT, JSON, OK_BODY, Upstream, always, answer, ask, proxied, upstream

pytestmark = pytest.mark.anyio

LARGE = json.dumps({"model": "local", "messages": [{"role": "user", "content": "word " * 3_000}]}).encode()
OK = answer(200, OK_BODY, JSON)


def listed(**row: object) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": "local", **row}]}).encode()


@pytest.mark.parametrize(
    ("row", "tokens", "server"),
    [
        ({"max_model_len": 8_192, "owned_by": "vllm"}, 8_192, "vLLM"),
        ({"context_length": 131_072}, 131_072, "OpenRouter"),
        ({"context_length": 131_072, "top_provider": {"context_length": 65_536}}, 65_536, "its provider"),
        ({"context_window": 131_072}, 131_072, "Groq"),
        ({"max_context_length": 32_768}, 32_768, "Mistral"),
        ({"max_context_length": 32_768, "loaded_context_length": 4_096}, 4_096, "LM Studio"),
        ({"meta": {"n_ctx_train": 131_072}}, None, "what a model was trained with says nothing"),
        ({"context_length": "8192"}, None, "a text"),
        ({"context_length": True}, None, "a truth"),
        ({"context_length": -1}, None, "nonsense"),
        ({"context_length": None}, None, "nothing"),
        ({}, None, "OpenAI"),
    ],
)
def test_a_list_of_models_states_windows_under_many_names(
    row: dict[str, object], tokens: int | None, server: str
) -> None:
    assert windows_of_list(listed(**row))[0] == ({} if tokens is None else {"local": tokens}), server


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"data": 1}', b'{"data": [1]}', b"[" * 100_000, b'\xff{"data": []}']
)
def test_no_list_is_an_error_of_its_kind(body: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, RecursionError, UnicodeDecodeError)):
        windows_of_list(body)


def test_a_list_without_models_is_no_error() -> None:
    assert windows_of_list(b'{"object": "list"}') == ({}, None)


@pytest.mark.parametrize(
    ("shown", "tokens"),
    [
        ({"parameters": 'stop "x"\nnum_ctx    4096', "model_info": {"llama.context_length": 131_072}}, 4_096),
        ({"model_info": {"general.architecture": "llama", "llama.context_length": 131_072}}, 131_072),
        ({"model_info": {"general.parameter_count": 1}}, None),
        ({}, None),
    ],
)
def test_ollama_shows_what_a_model_is_set_to_before_what_it_could_do(
    shown: dict[str, object], tokens: int | None
) -> None:
    assert window_of_show(json.dumps(shown).encode()) == tokens


def test_llama_cpp_states_what_one_slot_has() -> None:
    assert window_of_props(b'{"total_slots": 4, "default_generation_settings": {"n_ctx": 2048}}') == 2_048
    assert window_of_props(b"{}") is None


class Asking:
    """An asker and what it finds out about one upstream."""

    def __init__(self, client: UpstreamClient, behind: Upstream) -> None:
        self.behind = behind
        self.clock = Clock(0.0)
        self.windows = Windows(ModelTable(), SealedStore(MemoryStore(), Sealer(None), 600.0), self.clock)
        self.asker = WindowAsker(client, self.windows, self.clock)
        self.settings = Settings(base_url=f"{behind.address}/v1")

    async def learn(self, model: str) -> int | None:
        if self.asker.is_due(self.settings, model):
            await self.asker.ask(self.settings, [(b"authorization", b"Bearer k")], model)
        window = self.windows.resolve(ModelKey("default", "k", self.settings.base_url, model), None)
        return window.tokens if window else None

    @property
    def asked(self) -> list[str]:
        return [f"{call.method} {call.target}" for call in self.behind.questions]


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    async with upstream(always(OK)) as behind, UpstreamClient() as client:
        yield Asking(client, behind)


async def test_a_list_is_asked_for_once_in_an_interval(asking: Asking) -> None:
    asking.behind.facts["/v1/models"] = listed(max_model_len=8_192)
    assert [await asking.learn(name) for name in ("local", "other", "local")] == [8_192, None, 8_192]
    (question,) = asking.behind.questions
    assert question.header(b"authorization") == b"Bearer k"
    asking.clock.now = INTERVAL
    asking.behind.facts["/v1/models"] = listed(max_model_len=4_096)
    assert await asking.learn("local") == 4_096
    assert asking.asked == ["GET /v1/models"] * 2


async def test_llama_cpp_is_asked_for_its_slots(asking: Asking) -> None:
    asking.behind.facts |= {
        "/v1/models": listed(owned_by="llamacpp", meta={"n_ctx_train": 131_072}),
        "/props": b'{"default_generation_settings": {"n_ctx": 2048}}',
    }
    assert await asking.learn("any name") == 2_048
    assert asking.asked == ["GET /v1/models", "GET /props"]


async def test_ollama_is_asked_for_each_model_but_not_for_any_number_of_names(asking: Asking) -> None:
    asking.behind.facts |= {
        "/v1/models": listed(owned_by="library"),
        "/api/show": b'{"parameters": "num_ctx 8192"}',
    }
    for number in range(100):
        await asking.learn(f"m{number}")
    assert await asking.learn("m3") == 8_192
    assert asking.asked.count("POST /api/show") == 20
    assert json.loads(asking.behind.questions[1].body) == {"model": "m0"}


@pytest.mark.parametrize("fact", [None, b"<html>", b"[]", b'{"data": [{"id": 3}, {}]}'])
async def test_an_upstream_that_does_not_know_is_left_alone(asking: Asking, fact: bytes | None) -> None:
    if fact is not None:
        asking.behind.facts["/v1/models"] = fact
    assert [await asking.learn("local") for _ in range(3)] == [None] * 3
    assert asking.asked == ["GET /v1/models"]


async def test_an_upstream_that_is_gone_is_no_fault(asking: Asking) -> None:
    asking.settings = Settings(base_url="http://127.0.0.1:9/v1", connect_timeout=1)
    assert await asking.learn("local") is None
    assert not asking.asker.is_due(asking.settings, "local")


async def test_the_second_large_request_knows_what_the_upstream_said_behind_the_first(tmp_path: Path) -> None:
    async with proxied(tmp_path, always(OK)) as (address, behind):
        behind.facts["/v1/models"] = listed(max_model_len=16_384)
        small = LARGE.replace(b"word " * 2_990, b"")
        for body in (small, LARGE):
            assert (await ask(address, "POST", CHAT, [JSON], body)).header(b"x-compaction-window") is None
            assert len(behind.questions) <= (body is LARGE)
        while not (reply := await ask(address, "POST", CHAT, [JSON], LARGE)).header(b"x-compaction-window"):
            pass
        assert reply.header(b"x-compaction-window") == b"16384"
        assert [call.target for call in behind.questions] == ["/v1/models"]


MESSAGES_OK = answer(
    200,
    b'{"id":"msg_1","type":"message","role":"assistant","model":"local","content":[{"type":"text","text":"hi"}],'
    b'"stop_reason":"end_turn","usage":{"input_tokens":3100,"output_tokens":1}}',
    JSON,
)
KEY = (b"x-api-key", b"sk-ant-api03-k")


@pytest.mark.parametrize("sent", [None, b"2024-01-01"])
async def test_anthropics_list_is_asked_with_the_clients_key_and_a_version(tmp_path: Path, sent: bytes | None) -> None:
    version = [(b"anthropic-version", sent)] if sent else []
    async with proxied(tmp_path, always(MESSAGES_OK)) as (address, behind):
        behind.facts["/v1/models"] = listed(type="model", max_input_tokens=16_384)
        headers = [JSON, KEY, *version, (b"cookie", b"a=1")]
        while not (reply := await ask(address, "POST", "/v1/messages", headers, LARGE)).header(b"x-compaction-window"):
            assert reply.status == 200
        assert reply.header(b"x-compaction-window") == b"16384"
    (question,) = behind.questions
    assert question.header(b"anthropic-version") == (sent or b"2023-06-01")
    assert question.header(b"x-api-key") == KEY[1]
    assert question.header(b"authorization") is question.header(b"cookie") is None


async def test_a_login_asks_for_nothing(tmp_path: Path) -> None:
    async with proxied(tmp_path, always(MESSAGES_OK)) as (address, behind):
        for _ in range(3):
            login = (b"authorization", b"Bearer sk-ant-oat01-x")
            assert (await ask(address, "POST", "/v1/messages", [JSON, login], LARGE)).status == 200
        # Another one asks, so that what the first was followed by is over.
        await ask(address, "POST", "/v1/messages", [JSON, KEY], LARGE)
        while not behind.questions:
            await ask(address, "POST", "/v1/messages", [JSON, KEY], LARGE)
    assert [question.header(b"authorization") for question in behind.questions] == [None]
