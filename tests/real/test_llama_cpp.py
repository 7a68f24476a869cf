"""The proxy before the real llama.cpp server and a real small model: protocol and counts, never prose."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from tests.real.gguf import write_tokenizer
from tests.real.llama import MISSING, Llama, llama, model_file
from tests.real.texts import TEXTS
from tests.support.servers import configured, proxy
from tests.support.upstreams import CHAT, JSON, Reply, ask

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(model_file() is None, reason=MISSING)]

WINDOW = 2048
ANSWER = 8
TURNS = 16
TURN = "Please note part number {0} for the order of the workshop in the north, and say only that you did. " * 7


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server() -> Iterator[Llama]:
    with llama(WINDOW) as running:
        yield running


@pytest.fixture(scope="module")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("smollm2") / "tokenizer.json"
    write_tokenizer(model_file() or Path(), path)
    return path


class Chat:
    """A growing chat with one client behind the proxy."""

    def __init__(self, address: str, **body: object) -> None:
        self._address = address
        self._body = {"model": "smollm2", "max_tokens": ANSWER, "temperature": 0, **body}
        self.messages: list[dict[str, object]] = []
        self.replies: list[Reply] = []

    async def say(self, text: str) -> dict[str, int]:
        """The usage of the answer, which joins the chat."""
        self.messages.append({"role": "user", "content": text})
        body = json.dumps({**self._body, "messages": self.messages}).encode()
        reply = await ask(self._address, "POST", CHAT, [JSON], body)
        assert reply.status == 200, reply.body
        self.replies.append(reply)
        answer = json.loads(reply.body)
        self.messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        usage: dict[str, int] = answer["usage"]
        return usage

    def told(self, name: bytes) -> list[bytes | None]:
        return [reply.header(name) for reply in self.replies]


@asynccontextmanager
async def chat(
    directory: Path, server: Llama, rule: dict[str, object] | None = None, summarizer: str = "none", **body: object
) -> AsyncIterator[Chat]:
    settings = {
        "store": {"url": "memory://"},
        "upstreams": {"main": {"base_url": f"{server.address}/v1"}},
        "policies": {"default": {"summarizer": {"model": summarizer} if summarizer else {}}},
        "models": [{"match": "*", **rule}] if rule else [],
    }
    async with proxy(configured(directory, settings)) as address:
        yield Chat(address, **body)


@pytest.mark.parametrize("summarizer", ["none", ""], ids=["no summarizer", "summarized by itself"])
async def test_a_growing_chat_outlives_the_window(tmp_path: Path, server: Llama, summarizer: str) -> None:
    async with chat(tmp_path, server, summarizer=summarizer) as talk:
        usages = [await talk.say(TURN.format(number)) for number in range(TURNS)]
    assert server.prompt_tokens(messages=talk.messages) > 1.25 * WINDOW
    assert all(usage["total_tokens"] <= WINDOW for usage in usages)
    assert b"%d" % WINDOW in talk.told(b"x-compaction-window")  # /props was asked, or a refusal told
    outcomes = talk.told(b"x-compaction")
    assert {b"compacted", b"reused"} & set(outcomes[TURNS // 2 :])


async def test_a_window_that_is_not_known_is_learned_from_its_400(tmp_path: Path, server: Llama) -> None:
    async with chat(tmp_path, server, {"context_window": 100_000}) as talk:
        for number in range(4):
            talk.messages += [
                {"role": "user", "content": TURN.format(number) * 4},
                {"role": "assistant", "content": "Noted."},
            ]
        refused = await ask(server.address, "POST", CHAT, [JSON], json.dumps({"messages": talk.messages}).encode())
        assert refused.status == 400
        assert json.loads(refused.body)["error"]["type"] == "exceed_context_size_error"
        assert (await talk.say("And now?"))["prompt_tokens"] <= WINDOW
        await talk.say("And then?")
    assert talk.told(b"x-compaction-window")[-1] == b"%d" % WINDOW


async def test_the_answer_asked_for_has_room_since_the_server_cuts_it_silently(tmp_path: Path, server: Llama) -> None:
    answer = 600
    async with chat(
        tmp_path, server, {"context_window": WINDOW}, max_tokens=answer, stop=["\n", ".", "o", "e"]
    ) as talk:
        for number in range(8):
            usage = await talk.say(TURN.format(number))
            assert usage["prompt_tokens"] + answer <= WINDOW


@pytest.mark.parametrize("name", TEXTS)
def test_its_own_tokenizer_json_counts_as_the_server_does(server: Llama, tokenizer_json: Path, name: str) -> None:
    assert Tokenizer().count(TEXTS[name], str(tokenizer_json)) == pytest.approx(server.tokens(TEXTS[name]), rel=0.001)


async def test_a_whole_chat_is_counted_as_it_is_billed(tmp_path: Path, server: Llama, tokenizer_json: Path) -> None:
    async with chat(tmp_path, server, {"context_window": WINDOW, "encoding": str(tokenizer_json)}) as talk:
        for number in range(5):
            usage = await talk.say(TURN.format(number))
    counted = int(talk.told(b"x-compaction-tokens-sent")[-1] or 0)
    # The model's template adds a system message of its own.
    assert usage["prompt_tokens"] * 0.95 <= counted + 25
    assert counted <= usage["prompt_tokens"] * 1.03


def test_other_models_tokens_are_no_fewer_by_more_than_half(server: Llama) -> None:
    """What calibration has to make up for, at worst; English and code are within the margin."""
    tokenizer = Tokenizer()
    shares = {name: tokenizer.count(text, DEFAULT_ENCODING) / server.tokens(text) for name, text in TEXTS.items()}
    assert shares["English"] == pytest.approx(1, abs=0.1)
    assert min(shares.values()) > 0.15
