"""Upstreams through litellm: the whole proxy in a process of its own, before local servers that speak as providers do.

Only this file pays for loading litellm, once: the process serves all of its tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import zlib
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import yaml

from proxy.config.loading import ConfigError, load
from proxy.upstreams.litellm.translator import Translator
from tests.support import processes
from tests.support.processes import config
from tests.support.providers import CLOSE, GROQ_WHOLE, KEY, OVERFLOWS, SPOKEN, claude, claude_events, claudes_error
from tests.support.servers import configured, reserve_port
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    JSON,
    OK_BODY,
    Call,
    Reply,
    Script,
    Upstream,
    always,
    answer,
    ask,
    chunk,
    connected,
    head,
    upstream,
)
from tests.support.upstreams import chat as chat_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OPERATORS = "sk-operators-own-key-in-the-environment"
PROVIDERS = ("anthropic", "gemini", "ollama_chat", "bedrock", "groq")
MODELS = {name: f"{name}-model" for name in PROVIDERS} | {"bedrock": "amazon.nova-pro-v1:0"}
TOOL = {
    "type": "function",
    "function": {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
}
CONTENT = "a-word-that-only-requests-have"

OPEN = "claude-3-5-haiku-20241022"
# Tells of every name that is looked up and every connection that is made beyond this machine.
WATCH = """
import sys
def watch(event, told):
    if event in ("socket.connect", "socket.getaddrinfo") and "127.0.0.1" not in repr(told):
        print("WENT OUT", event, told, file=sys.stderr, flush=True)
sys.addaudithook(watch)
print("WATCHED", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@dataclass(frozen=True)
class Served:
    """The proxy's address, the ports that its upstreams are expected at, and one that nobody may ever ask."""

    address: str
    ports: Mapping[str, int]
    canary: socket.socket
    printed: Path

    @asynccontextmanager
    async def provider(self, name: str, script: Script) -> AsyncIterator[Upstream]:
        """The server of a provider while it plays a script."""
        behind = Upstream(script)
        running: list[asyncio.Task[None]] = []
        opened: list[asyncio.StreamWriter] = []

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            opened.append(writer)
            running.append(asyncio.ensure_future(behind.serve(reader, writer)))

        server = await asyncio.start_server(accept, "127.0.0.1", self.ports[name])
        try:
            yield behind
        finally:
            server.close()
            for task in running:
                task.cancel()
            for writer in opened:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()
            for error in await asyncio.gather(*running, return_exceptions=True):
                if isinstance(error, Exception):
                    raise error

    async def ask(self, body: bytes, *headers: tuple[bytes, bytes], key: bytes | None = KEY) -> Reply:
        sent = [JSON, *headers] if key is None else [JSON, (b"Authorization", b"Bearer " + key), *headers]
        return await ask(self.address, "POST", CHAT, sent, body)

    def nobody_asked(self) -> bool:
        """Whether no connection was ever made to the canary: the kernel would have taken it."""
        with suppress(BlockingIOError):
            self.canary.accept()[0].close()
            return False
        return True


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`concertina serve` in a hostile environment: proxies, addresses and keys of litellm's, a .env, debug output."""
    directory = tmp_path_factory.mktemp("litellm")
    ports = {name: reserve_port() for name in PROVIDERS}
    paths = {"groq": "/openai/v1"}
    upstreams = {
        name: {
            "base_url": f"http://127.0.0.1:{port}{paths.get(name, '')}",
            "provider": "litellm",
            "litellm_provider": name,
        }
        for name, port in ports.items()
    }
    upstreams["groq"] |= {"api_key": "sk-upstreams", "idle_timeout": "2s"}
    # One that is not told whose language it speaks, at the same server.
    upstreams["open"] = {"base_url": upstreams["anthropic"]["base_url"], "provider": "litellm"}
    models = [{"match": MODELS[name], "upstream": name, "context_window": 100_000} for name in PROVIDERS]
    models.append({"match": f"*/{OPEN}", "upstream": "open"})
    models[0]["context_window"] = 3_000
    config = {"upstreams": upstreams, "models": models, "store": {"url": "memory://"}}
    (directory / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    (directory / "sitecustomize.py").write_text(WATCH, "utf-8")
    (directory / ".env").write_text(f"ANTHROPIC_API_KEY={OPERATORS}\n", "utf-8")
    canary = socket.create_server(("127.0.0.1", 0))
    canary.setblocking(False)
    elsewhere = f"http://127.0.0.1:{canary.getsockname()[1]}"
    hostile = {
        "PYTHONPATH": str(directory),
        **dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"), elsewhere),
        **dict.fromkeys(("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL", "OLLAMA_API_BASE", "GROQ_API_BASE"), elsewhere),
        **dict.fromkeys(("GEMINI_API_BASE", "OPENAI_BASE_URL", "OPENAI_API_BASE", "LITELLM_PROXY_API_BASE"), elsewhere),
        **dict.fromkeys(("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OLLAMA_API_KEY", "GROQ_API_KEY"), OPERATORS),
        "AIOHTTP_TRUST_ENV": "True",
        "LITELLM_LOG": "DEBUG",
        "NO_PROXY": "",
        "no_proxy": "",
        "AWS_ACCESS_KEY_ID": OPERATORS,
        "AWS_SECRET_ACCESS_KEY": OPERATORS,
        "AWS_REGION": "us-east-1",
    }
    command = [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-m", "proxy", "serve", "--port", "0"]
    errors = directory / "stderr"
    with errors.open("wb") as sink, canary:
        process = subprocess.Popen(
            [*command, "config.yaml"],
            cwd=directory,
            env={**os.environ, **hostile},
            stdout=subprocess.PIPE,
            stderr=sink,
            text=True,
        )
        with process:
            assert process.stdout is not None
            listens = re.match(r"concertina listens on (http://127\.0\.0\.1:\d+),", process.stdout.readline())
            assert listens, errors.read_text()
            yield Served(listens[1], ports, canary, errors)
            process.terminate()
            assert process.wait(30) == 0
            printed = process.stdout.read() + errors.read_text()
    # Whatever failed in these tests, nothing was said of what it was about.
    for secret in (CONTENT, KEY.decode(), OPERATORS, "sk-upstreams", "Give Feedback", "Traceback", "never retrieved"):
        assert secret not in printed, printed[:4_000]
    assert "WATCHED" in printed
    assert "WENT OUT" not in printed, printed[:4_000]
    assert "ResourceWarning" not in printed, printed[:4_000]


def asks(provider: str, *contents: str, **more: object) -> bytes:
    return chat_of(*(contents or (CONTENT,)), **{"model": MODELS[provider], **more})


def body_of(call: Call) -> dict[str, object]:
    decoded: dict[str, object] = json.loads(call.body)
    return decoded


def events_of(reply: Reply) -> list[dict[str, object]]:
    """The chunks of a stream that came to its end."""
    *events, done, rest = reply.body.decode().split("\n\n")
    assert (done, rest, reply.complete) == ("data: [DONE]", "", True)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def text_of(events: list[dict[str, object]]) -> str:
    return "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])  # type: ignore[attr-defined]


def arguments_of(events: list[dict[str, object]]) -> str:
    deltas = (choice["delta"] for event in events for choice in event["choices"])  # type: ignore[attr-defined]
    return "".join(call["function"].get("arguments") or "" for d in deltas for call in d.get("tool_calls") or ())


@pytest.mark.parametrize("provider", SPOKEN)
async def test_an_answer_with_a_tool_call_comes_back_as_openais(served: Served, provider: str) -> None:
    path, credential, whole, _ = SPOKEN[provider]
    async with served.provider(provider, always(whole)) as behind:
        reply = await served.ask(asks(provider, tools=[TOOL], max_tokens=50))
    (call,) = behind.calls
    assert (call.method, call.target, call.header(credential[0])) == ("POST", path, credential[1])
    assert CONTENT.encode() in call.body
    assert b'"read"' in call.body
    assert (reply.status, reply.header(b"content-type")) == (200, b"application/json")
    assert reply.header(b"content-length") == str(len(reply.body)).encode()
    said = reply.json()
    (choice,) = said["choices"]  # type: ignore[misc]
    (tool,) = choice["message"]["tool_calls"]
    assert (said["object"], choice["finish_reason"]) == ("chat.completion", "tool_calls")
    assert (choice["message"]["role"], choice["message"]["content"]) == ("assistant", "It is done.")
    assert (tool["type"], tool["function"]["name"]) == ("function", "read")
    assert json.loads(tool["function"]["arguments"]) == {"path": "a.py"}
    usage = said["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (11, 7, 18)  # type: ignore[index]
    assert b"hidden" not in reply.body


@pytest.mark.parametrize("provider", SPOKEN)
@pytest.mark.parametrize("usage", [False, True])
async def test_a_stream_comes_back_as_openais_events(served: Served, provider: str, usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if usage else {}
    async with served.provider(provider, always(SPOKEN[provider][3])) as behind:
        reply = await served.ask(asks(provider, tools=[TOOL], stream=True, **options))
    assert len(behind.calls) == 1
    assert (reply.status, reply.header(b"content-type")) == (200, b"text/event-stream; charset=utf-8")
    events = events_of(reply)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert text_of(events) == "It is done."
    assert json.loads(arguments_of(events)) == {"path": "a.py"}
    finished = [c["finish_reason"] for e in events for c in e["choices"] if c.get("finish_reason")]  # type: ignore[attr-defined]
    assert finished == ["tool_calls"]
    told = [event for event in events if "usage" in event]
    assert len(told) == usage
    for event in told:
        assert event["choices"] == []
        assert event["usage"]["prompt_tokens"] == 11  # type: ignore[index]
        assert event["usage"]["completion_tokens"] == 7  # type: ignore[index]


async def test_the_history_of_a_tool_call_reaches_the_provider_in_its_own_words(served: Served) -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "x = 1"},
    ]
    async with served.provider("anthropic", always(SPOKEN["anthropic"][2])) as behind:
        reply = await served.ask(
            json.dumps({"model": "anthropic-model", "messages": messages, "tools": [TOOL]}).encode()
        )
    assert reply.status == 200
    sent = json.dumps(body_of(behind.calls[0]))
    assert '"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a.py"}' in sent
    assert '"type": "tool_result", "tool_use_id": "t1"' in sent


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "kind", "message", "headers"),
    [
        (400, "invalid_request_error", "messages.0: all messages must have content", ()),
        (401, "authentication_error", "invalid x-api-key", ()),
        (404, "not_found_error", "model: anthropic-model", ()),
        (
            429,
            "rate_limit_error",
            "slow down",
            ((b"retry-after", b"7"), (b"anthropic-ratelimit-tokens-remaining", b"0")),
        ),
        (500, "api_error", "Internal server error", ()),
        (529, "overloaded_error", "Overloaded", ((b"x-should-retry", b"true"), (b"request-id", b"req_1"))),
    ],
)
async def test_an_error_keeps_status_words_and_headers_and_is_not_tried_again(
    served: Served, status: int, kind: str, message: str, headers: tuple[tuple[bytes, bytes], ...], stream: bool
) -> None:
    async with served.provider("anthropic", always(claudes_error(status, kind, message, *headers))) as behind:
        reply = await served.ask(asks("anthropic", stream=stream))
    assert len(behind.calls) == 1
    assert reply.status == status
    assert reply.json() == {"error": {"message": message, "type": kind, "param": None, "code": None}}
    for name, value in headers:
        assert reply.header(name) == value


async def test_the_errors_of_the_openai_sdk_inside_are_told_as_well_and_not_tried_again(served: Served) -> None:
    body = json.dumps({"error": {"message": "Rate limited.", "type": "tokens", "code": "rate_limit_exceeded"}})
    limited = answer(429, body.encode(), JSON, CLOSE, (b"retry-after", b"3"))
    async with served.provider("groq", always(limited)) as behind:
        reply = await served.ask(asks("groq"))
    (call,) = behind.calls
    assert (call.target, call.header(b"authorization")) == ("/openai/v1/chat/completions", b"Bearer sk-upstreams")
    assert (reply.status, reply.header(b"retry-after")) == (429, b"3")
    assert reply.json()["error"] == {
        "message": "Rate limited.",
        "type": "tokens",
        "param": None,
        "code": "rate_limit_exceeded",
    }


async def test_an_openai_compatible_provider_is_understood_too(served: Served) -> None:
    async with served.provider("groq", always(answer(200, json.dumps(GROQ_WHOLE).encode(), JSON, CLOSE))):
        reply = await served.ask(asks("groq", tools=[TOOL]))
    (choice,) = reply.json()["choices"]  # type: ignore[misc]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"path": "a.py"}'}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("provider", ["anthropic", "groq"])
async def test_a_redirect_is_not_followed(served: Served, provider: str, status: int) -> None:
    location = (b"Location", f"http://127.0.0.1:{served.canary.getsockname()[1]}/v1/messages".encode())
    async with served.provider(provider, always(answer(status, b"", location, CLOSE))) as behind:
        reply = await served.ask(asks(provider))
    assert len(behind.calls) == 1
    assert (reply.status, reply.header(b"location")) == (502, None)
    assert f"redirect ({status}), which is not followed" in reply.json()["error"]["message"]  # type: ignore[index]
    assert served.nobody_asked()


@pytest.mark.parametrize("provider", OVERFLOWS)
async def test_an_overflow_is_told_as_one_with_the_providers_numbers(served: Served, provider: str) -> None:
    status, body, words = OVERFLOWS[provider]
    refused = answer(status, json.dumps(body).encode(), JSON, CLOSE)
    async with served.provider(provider, always(refused)):
        reply = await served.ask(asks(provider), (b"x-compaction", b"off"))
    assert reply.status == 400
    error = reply.json()["error"]
    assert words in error["message"]  # type: ignore[index]
    if provider in ("anthropic", "gemini"):  # what litellm knows as an overflow
        assert error["code"] == "context_length_exceeded"  # type: ignore[index]


def words_in(call: Call) -> int:
    return len(re.findall(rb"\w+", call.body))


def with_window(words: int) -> Script:
    """Claude with a window: refuses as it does, writes records when asked to, and else answers."""

    async def script(call: Call) -> None:
        await call.read()
        if words_in(call) > words:
            refusal = f"prompt is too long: {words_in(call)} tokens > {words} maximum"
            await call.send(claudes_error(400, "invalid_request_error", refusal))
        elif body_of(call).get("stream"):
            await call.send(answer(200, b"".join(claude_events("It is ", "done.")), EVENTS, CLOSE))
        else:
            await call.send(answer(200, claude(), JSON, CLOSE))

    return script


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_conversation_that_overflows_is_compacted_and_answered(served: Served, stream: bool) -> None:
    # Nothing is known of this model's window but what it refuses with.
    turns = [
        {"role": role, "content": f"{role} {number} {stream}: " + "some more words of it " * 40}
        for number in range(30)
        for role in ("user", "assistant")
    ]
    last = {"role": "user", "content": "What is the answer?"}
    body = json.dumps({"model": f"claude-unheard-of-{stream}", "messages": [*turns, last], "stream": stream}).encode()
    async with served.provider("anthropic", with_window(3_000)) as behind:
        reply = await served.ask(body)
    assert (reply.status, reply.header(b"x-compaction")) == (200, b"applied"), reply
    first_call, *others = behind.calls
    assert words_in(first_call) > 3_000
    assert others
    assert words_in(others[-1]) <= 3_000
    assert b"What is the answer?" in others[-1].body
    if stream:
        assert text_of(events_of(reply)) == "It is done."


async def test_the_summarizer_is_asked_through_litellm_too(served: Served) -> None:
    # Its window is configured, so nothing overflows: the record is made before anything is sent.
    turns = [
        {"role": role, "content": f"{role} {number}: " + "many words that fill the window " * 12}
        for number in range(24)
        for role in ("user", "assistant")
    ]
    last = {"role": "user", "content": "What now?"}
    async with served.provider("anthropic", with_window(100_000)) as behind:
        reply = await served.ask(json.dumps({"model": "anthropic-model", "messages": [*turns, last]}).encode())
    assert (reply.status, reply.header(b"x-compaction")) == (200, b"applied"), reply
    *summaries, forwarded = behind.calls
    assert summaries
    assert {call.target for call in summaries} == {"/v1/messages"}
    assert {call.header(b"x-api-key") for call in summaries} == {KEY}
    assert b"What now?" in forwarded.body
    assert not any(b"What now?" in call.body for call in summaries)


@pytest.mark.parametrize(
    "field",
    [
        *("api_base", "base_url", "api_key", "custom_llm_provider", "model_list", "fallbacks", "mock_response"),
        *("extra_headers", "headers", "organization", "aws_bedrock_runtime_endpoint", "vertex_credentials", "client"),
        *("extra_body", "litellm_params", "callbacks", "num_retries", "deployment_id", "_skip_mcp_handler", "timeout"),
        *("shared_session", "prompt_id", "guardrails", "cache", "no-log", "litellm_call_id", "allowed_openai_params"),
    ],
)
async def test_no_field_of_a_request_steers_litellm(served: Served, field: str) -> None:
    elsewhere = f"http://127.0.0.1:{served.canary.getsockname()[1]}"
    async with served.provider("anthropic", always(SPOKEN["anthropic"][2])) as behind:
        reply = await served.ask(asks("anthropic", **{field: elsewhere}))
    assert (reply.status, behind.calls) == (400, [])
    assert reply.json()["error"]["param"] == field  # type: ignore[index]
    assert served.nobody_asked()


@pytest.mark.parametrize(
    "model", ["anthropic-../x", "anthropic-x?key=1", "anthropic-x#", "anthropic-x y", "anthropic-\n", "anthropic-%2e"]
)
async def test_a_models_name_leads_nowhere_else(served: Served, model: str) -> None:
    async with served.provider("anthropic", always(SPOKEN["anthropic"][2])) as behind:
        reply = await served.ask(asks("anthropic", model=model))
    assert (reply.status, behind.calls) == (400, [])


async def test_without_a_configured_provider_the_models_name_says_whose_language_is_spoken(served: Served) -> None:
    async with served.provider("anthropic", always(SPOKEN["anthropic"][2])) as behind:
        reply = await served.ask(asks("anthropic", model=f"anthropic/{OPEN}"))
        unnamed = await served.ask(asks("anthropic", model=f"nobody/{OPEN}"))
    assert (reply.status, unnamed.status) == (200, 400)
    assert [(call.target, body_of(call)["model"]) for call in behind.calls] == [("/v1/messages", OPEN)]


@pytest.mark.parametrize("prefix", ["openai/gpt-4o", "ollama/llama3", "litellm_proxy/x", "bedrock/converse/x"])
async def test_a_models_name_chooses_no_provider(served: Served, prefix: str) -> None:
    # The first upstream is the default one: it is Claude's server that is asked, in Claude's language.
    async with served.provider("anthropic", always(SPOKEN["anthropic"][2])) as behind:
        reply = await served.ask(asks("anthropic", model=prefix))
    assert reply.status == 200
    assert [(call.target, body_of(call)["model"]) for call in behind.calls] == [("/v1/messages", prefix)]
    assert served.nobody_asked()


async def test_an_image_named_by_its_address_is_not_fetched(served: Served) -> None:
    url = f"http://127.0.0.1:{served.canary.getsockname()[1]}/a.png"
    content = [{"type": "image_url", "image_url": {"url": url}}]
    body = {"model": "ollama_chat-model", "messages": [{"role": "user", "content": content}]}
    for provider in ("ollama_chat", "bedrock", "anthropic", "gemini"):
        async with served.provider(provider, always(SPOKEN[provider][2])) as behind:
            reply = await served.ask(json.dumps({**body, "model": MODELS[provider]}).encode())
        if behind.calls:  # passed on for the provider to fetch, or as it stands
            assert url.encode() in behind.calls[0].body
        else:
            assert (reply.status, reply.json()["error"]["param"]) == (400, "messages")  # type: ignore[index]
        assert served.nobody_asked()


@pytest.mark.parametrize("provider", SPOKEN)
async def test_without_a_key_none_is_sent_least_of_all_the_operators(served: Served, provider: str) -> None:
    async with served.provider(provider, always(SPOKEN[provider][2])) as behind:
        await served.ask(asks(provider), key=None)
    (call,) = behind.calls
    sent = b"\n".join(name + value for name, value in call.headers) + call.target.encode()
    assert not re.search(rb"(?i)bearer|api-key|sk-|no-key|AWS4", sent)


async def test_nothing_but_chat_completions_is_there(served: Served) -> None:
    key = (b"Authorization", b"Bearer " + KEY)
    for method, path, body in (("GET", "/v1/models", None), ("POST", "/v1/embeddings", b"{}"), ("GET", CHAT, None)):
        reply = await ask(served.address, method, path, [key], body)
        assert (reply.status, reply.json()["error"]["code"]) == (404, "unknown_url")  # type: ignore[index]


async def test_what_the_provider_does_not_know_is_refused_in_plain_words(served: Served) -> None:
    async with served.provider("anthropic", always(SPOKEN["anthropic"][2])) as behind:
        reply = await served.ask(asks("anthropic", logit_bias={"1": 2}))
    assert (reply.status, behind.calls) == (400, [])
    message = reply.json()["error"]["message"]  # type: ignore[index]
    assert "logit_bias" in message
    assert "litellm_settings" not in message


async def test_bookkeeping_of_openais_is_left_out(served: Served) -> None:
    async with served.provider("anthropic", always(SPOKEN["anthropic"][2])) as behind:
        reply = await served.ask(asks("anthropic", metadata={"session_id": "s"}, store=False, prompt_cache_key="k"))
    assert reply.status == 200
    assert not {"metadata", "store", "prompt_cache_key"} & body_of(behind.calls[0]).keys()


async def test_a_compressed_request_is_read(served: Served) -> None:
    async with served.provider("anthropic", always(SPOKEN["anthropic"][2])) as behind:
        reply = await served.ask(zlib.compress(asks("anthropic")), (b"Content-Encoding", b"deflate"))
    assert reply.status == 200
    assert CONTENT.encode() in behind.calls[0].body


async def test_events_are_passed_on_as_they_come_and_leaving_ends_the_providers_work(served: Served) -> None:
    one, *rest = claude_events("It is ", "done.")[3:]
    begun = claude_events()[:3]
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED), *map(chunk, begun), chunk(one))
        await go_on.wait()
        await call.send(chunk(rest[0]))
        await call.gone()

    async with served.provider("anthropic", script) as behind, connected(served.address) as client:
        headers = [(b"Authorization", b"Bearer " + KEY), JSON, (b"Content-Length", b"%d" % len(BODY))]
        await client.send(b"POST %b HTTP/1.1\r\n" % CHAT.encode())
        await client.send(b"".join(b"%b: %b\r\n" % header for header in [(b"Host", b"p"), *headers]), b"\r\n", BODY)
        assert await client.head() == 200
        came = client.chunks()
        assert b"It is " in await anext(came)
        go_on.set()
        assert b"done." in await anext(came)
        client.close()
        await behind.calls[0].closed.wait()


BODY = asks("anthropic", stream=True)


async def test_a_model_may_repeat_itself(served: Served) -> None:
    said = ["----"] * 300
    async with served.provider("anthropic", always(answer(200, b"".join(claude_events(*said)), EVENTS, CLOSE))):
        reply = await served.ask(BODY)
    assert text_of(events_of(reply)) == "".join(said)


async def test_a_stream_that_breaks_off_is_never_ended_cleanly(served: Served) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED), *map(chunk, claude_events("It is ")[:4]))
        call.reset()

    async with served.provider("anthropic", script):
        reply = await served.ask(BODY)
    assert (reply.status, reply.complete) == (200, False)
    assert b"It is " in reply.body
    assert b"The upstream's response was cut off." in reply.body
    assert b"[DONE]" not in reply.body


async def test_an_error_inside_a_stream_breaks_it_off_and_before_it_is_an_answer(served: Served) -> None:
    error = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
    for before, complete in ((claude_events("It is ")[:4], False), (claude_events()[:1], True)):
        async with served.provider("anthropic", always(answer(200, b"".join(before) + error, EVENTS, CLOSE))) as behind:
            reply = await served.ask(BODY)
        assert len(behind.calls) == 1
        assert reply.complete == complete
        if complete:
            assert reply.status >= 500
            assert "Overloaded" in reply.json()["error"]["message"]  # type: ignore[index]


async def test_a_provider_that_is_not_there_or_says_nothing_is_told_in_our_words(served: Served) -> None:
    reply = await served.ask(asks("anthropic"))
    assert (reply.status, reply.json()["error"]["code"]) == (502, "upstream_unreachable")  # type: ignore[index]

    async def silent(call: Call) -> None:
        await call.read()
        await call.gone()

    async with served.provider("groq", silent) as behind:
        reply = await served.ask(asks("groq"))
    assert len(behind.calls) == 1
    assert (reply.status, reply.json()["error"]["code"]) == (504, "upstream_timeout")  # type: ignore[index]

    async def gone(call: Call) -> None:
        await call.read()
        call.reset()

    async with served.provider("anthropic", gone) as behind:
        reply = await served.ask(asks("anthropic"))
    assert len(behind.calls) == 1
    assert reply.status == 502


async def test_an_answer_that_is_none_is_told_without_what_it_holds(served: Served) -> None:
    async with served.provider("anthropic", always(answer(200, b"<html>hello</html>", JSON, CLOSE))) as behind:
        reply = await served.ask(asks("anthropic"))
    assert len(behind.calls) == 1
    assert reply.status >= 500
    assert b"Traceback" not in reply.body


async def test_it_is_ready_and_nobody_was_asked_who_should_not_be(served: Served) -> None:
    assert (await ask(served.address, "GET", "/readyz")).status == 200
    assert served.nobody_asked()


def test_without_such_an_upstream_litellm_is_not_loaded(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from proxy.app import App\n"
        "from proxy.config.loading import load\n"
        "async def main():\n"
        "    async with App(load(None, {})).open(): pass\n"
        "asyncio.run(main())\n"
        "print({'litellm', 'httpx', 'openai'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "set()\n"


async def test_a_provider_that_litellm_does_not_know_is_an_error_of_the_config(tmp_path: Path) -> None:
    class Loaded:
        providers = frozenset({"anthropic", "gemini"})

    upstream = {"base_url": "http://h", "provider": "litellm", "litellm_provider": "antropic"}
    config = configured(tmp_path, {"upstreams": {"a": upstream}})
    translator = Translator(None)  # type: ignore[arg-type]
    translator._client = Loaded()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"upstreams\.a\.litellm_provider: .*did you mean 'anthropic'"):
        await translator.load(config.upstreams)


@pytest.mark.parametrize(
    ("upstream", "message"),
    [
        ({"litellm_provider": "gemini"}, "has no effect without provider: litellm"),
    ],
)
def test_the_config_says_which_providers_language_an_upstream_speaks(
    tmp_path: Path, upstream: dict[str, str], message: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"upstreams": {"a": {"base_url": "http://h", **upstream}}}), "utf-8")
    with pytest.raises(ConfigError, match=f"upstreams.a.litellm_provider: {message}"):
        load(file, {})


async def test_its_requests_go_by_the_proxy_that_the_operator_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, as litellm is confined there for good."""
    main = {
        "base_url": "http://models.example/v1",
        "provider": "litellm",
        "litellm_provider": "hosted_vllm",
        "api_key": "k",
    }
    async with upstream(always(answer(200, OK_BODY, JSON))) as before:
        monkeypatch.setenv("HTTP_PROXY", before.address)
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        config(tmp_path / "config.yaml", "", upstreams={"main": main})
        with processes.served(tmp_path / "config.yaml") as (_, port):
            reply = await ask(f"127.0.0.1:{port}", "POST", CHAT, [JSON], chat_of("hi"))
    assert reply.status == 200
    assert {call.target for call in before.calls} == {f"http://models.example{CHAT}"}
