"""`python -m benchmarks.silence [--seconds N]`: whether streams of a silent upstream reach their clients whole.

nginx stands before the proxy, and before the upstream alone, with its default timeouts: it cuts what says nothing for
60 s. The upstream is silent before its head, behind its head, or between two events. All cases run side by side: raw
sockets, the SDKs, and codex and Claude Code if `make agents` has installed them; none of them retries. Then refusals,
at once and after 5 s, of which status, Retry-After and body must be those of the upstream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import anthropic
import openai
from rich.console import Console
from rich.table import Table

from benchmarks import servers
from policies.price import Tokens
from proxy.cli.demo.serving import serving
from proxy.dialects.table import CHAT, MESSAGES, RESPONSES
from tests.agents import starting
from tests.agents.running import received, run
from tests.agents.speaking import Chat, Messages, Responses, Said, Speech
from tests.support.upstreams import HOST, JSON, ask, connected, request

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from proxy.dialects.base import Answers

_BEFORE, _BEHIND, _BETWEEN = SILENCES = ("before its head", "behind its head", "between two events")
# What asks for a refusal, and the seconds until it comes.
_REFUSALS = {"refuse at once": 0.0, "refuse after 5 s": 5.0}
_TEXT = "The silence is over."
_TOKENS = Tokens(prompt=100, output=5)
_STATUS, _RETRY_AFTER = 429, b"20"
# After which an agent that hangs is ended.
_AGENT_SECONDS = 600.0

AskSdk = Callable[[str, str], Awaitable[str]]
"""For an address and a prompt, the text of a streamed answer."""
AskAgent = Callable[[str, str], tuple[str, starting.Arguments, Mapping[str, str]]]
"""For an address and a prompt: below node_modules an agent's program, its arguments, and its environment."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One dialect: how the upstream speaks it, and who asks in it."""

    name: str
    speech: Speech
    answers: Answers
    sdk: AskSdk
    agent: AskAgent | None = None

    def body(self, prompt: str) -> bytes:
        messages = [{"role": "user", "content": prompt}]
        return json.dumps({"model": "m", "max_tokens": 100, "stream": True, self.speech.array: messages}).encode()

    def frames(self) -> list[bytes]:
        return [self.speech.frame(event) for event in self.speech.events(Said(1, _TEXT), _TOKENS)]

    def refusal(self) -> bytes:
        return json.dumps(self.speech.refusal("Slow down.")).encode()

    def without_signs(self, body: bytes) -> bytes:
        """What the upstream said, without the proxy's signs of life."""
        return body.replace(self.answers.WAITING, b"").replace(self.answers.KEEPALIVE, b"")


@dataclass(frozen=True, slots=True)
class Row:
    """How one silence ended for each client.

    first, pause: seconds to the raw socket's first byte, and of its longest pause.
    """

    first: float
    pause: float
    raw: str
    sdk: str
    agent: str


async def _chat(address: str, prompt: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client:
        chunks = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": prompt}], stream=True
        )
        return "".join([choice.delta.content or "" async for chunk in chunks for choice in chunk.choices])


async def _responses(address: str, prompt: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client:
        events = await client.responses.create(model="m", input=prompt, stream=True)
        return "".join([event.delta async for event in events if event.type == "response.output_text.delta"])


async def _messages(address: str, prompt: str) -> str:
    async with (
        anthropic.AsyncAnthropic(base_url=address, api_key="k", max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=100, messages=[{"role": "user", "content": prompt}]) as stream,
    ):
        return await stream.get_final_text()


def _codex(_address: str, prompt: str) -> tuple[str, starting.Arguments, Mapping[str, str]]:
    def arguments(home: Path, address: str) -> list[str]:
        retries = [f"model_providers.concertina.{kind}_max_retries=0" for kind in ("stream", "request")]
        return [*starting.codex(prompt)(home, address), *(part for retry in retries for part in ("-c", retry))]

    return starting.CODEX, arguments, {"OPENAI_API_KEY": starting.KEY}


def _claude(address: str, prompt: str) -> tuple[str, starting.Arguments, Mapping[str, str]]:
    once = {"CLAUDE_CODE_MAX_RETRIES": "0", "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1"}
    return starting.CLAUDE, starting.claude("claude-sonnet-4-5", prompt), {**starting.claudes(address), **once}


PROTOCOLS = (
    Protocol("chat", Chat(), CHAT.answers, _chat),
    Protocol("Responses", Responses(), RESPONSES.answers, _responses, _codex),
    Protocol("Messages", Messages(), MESSAGES.answers, _messages, _claude),
)


class SilentServer:
    """An ASGI app that is silent, or refuses, as the prompt asks."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await received(receive)
        protocol = next((each for each in PROTOCOLS if each.speech.path == scope["path"]), None)
        if protocol is None:
            await _respond(send, 404, b"{}")
            return
        for prompt, seconds in _REFUSALS.items():
            if prompt.encode() in body:
                await asyncio.sleep(seconds)
                await _respond(send, _STATUS, protocol.refusal(), (b"retry-after", _RETRY_AFTER))
                return
        await self._stream(protocol.frames(), body, send)

    async def _stream(self, frames: list[bytes], body: bytes, send: Send) -> None:
        async def pause(place: str) -> None:
            if place.encode() in body:
                await asyncio.sleep(self._seconds)

        await pause(_BEFORE)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await pause(_BEHIND)
        for index, frame in enumerate(frames):
            if index == len(frames) // 2:
                await pause(_BETWEEN)
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _respond(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def _row(protocol: Protocol, address: str, prompt: str) -> Row:
    (first, pause, raw), sdk, agent = await asyncio.gather(
        _ask_raw(protocol, address, prompt), _ask_sdk(protocol, address, prompt), _ask_agent(protocol, address, prompt)
    )
    return Row(first, pause, raw, sdk, agent)


async def _ask_raw(protocol: Protocol, address: str, prompt: str) -> tuple[float, float, str]:
    """Seconds to the first byte, those of the longest pause, and how it ended."""
    body, is_whole = b"", False
    async with connected(address) as client:
        moments = [time.perf_counter()]
        await client.send(request("POST", protocol.speech.path, [HOST, JSON], protocol.body(prompt)))
        status = await client.head()
        moments.append(time.perf_counter())
        try:
            async for part in client.chunks():
                body += part
                moments.append(time.perf_counter())
            is_whole = protocol.without_signs(body) == b"".join(protocol.frames())
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        moments.append(time.perf_counter())
    end = str(status) if status != 200 else "whole" if is_whole else "cut"
    pause = max(later - earlier for earlier, later in pairwise(moments))
    return moments[1] - moments[0], pause, _ended(end, moments[0])


async def _ask_sdk(protocol: Protocol, address: str, prompt: str) -> str:
    began = time.perf_counter()
    try:
        text = await protocol.sdk(address, prompt)
    except Exception as error:  # noqa: BLE001 - an SDK's, or the HTTP client's below it
        return _ended(type(error).__name__, began)
    return _ended("whole" if text == _TEXT else "not whole", began)


async def _ask_agent(protocol: Protocol, address: str, prompt: str) -> str:
    if protocol.agent is None:
        return ""
    program, arguments, env = protocol.agent(address, prompt)
    path = next(starting.installed(program), None)
    if path is None:
        return "not installed"
    with tempfile.TemporaryDirectory() as folder:
        work, home = Path(folder) / "work", Path(folder) / "home"
        work.mkdir()
        home.mkdir()
        began = time.perf_counter()
        code, said = await run([str(path), *arguments(home, address)], env, work, home, _AGENT_SECONDS)
    return _ended("whole" if code == 0 and _TEXT in said else f"exit {code}", began)


def _ended(end: str, began: float) -> str:
    return f"{end}, {time.perf_counter() - began:.1f} s"


async def _refusal(protocol: Protocol, address: str, prompt: str) -> tuple[str, str, str, str]:
    """Status, Retry-After, whether the body is the upstream's, and the time."""
    began = time.perf_counter()
    reply = await ask(address, "POST", protocol.speech.path, [JSON], protocol.body(prompt))
    waits = (reply.header(b"retry-after") or b"none").decode()
    is_same = "yes" if reply.body == protocol.refusal() else "no"
    return str(reply.status), waits, is_same, f"{time.perf_counter() - began:.2f}"


async def _measure(ways: Mapping[str, str], port: int, seconds: float) -> tuple[Table, Table]:
    """ways: the address of nginx, by what stands behind it. port: where the upstream is looked for."""
    silences = [(way, protocol, place) for way in ways for protocol in PROTOCOLS for place in SILENCES]
    refusals = [(way, protocol, prompt) for way in ways for protocol in PROTOCOLS for prompt in _REFUSALS]
    async with serving(SilentServer(seconds), port=port):
        rows = await asyncio.gather(
            *(_row(protocol, ways[way], f"Be silent {place}.") for way, protocol, place in silences)
        )
        # By themselves: beside agents that start, nothing is quick.
        refused = await asyncio.gather(*(_refusal(protocol, ways[way], prompt) for way, protocol, prompt in refusals))
    title = f"an upstream that is silent for {seconds:g} s, behind nginx with its default timeouts"
    columns = ("behind nginx", "API", "silent", "first byte, s", "longest pause, s", "raw socket", "SDK", "agent")
    silent = Table(*columns, title=title)
    for (way, protocol, place), row in zip(silences, rows, strict=True):
        figures = (f"{row.first:.1f}", f"{row.pause:.1f}", row.raw, row.sdk, row.agent)
        silent.add_row(way, protocol.name, place, *figures, end_section=place == SILENCES[-1])
    table = Table("behind nginx", "API", "asked", "status", "Retry-After", "same body", "s", title="refusals")
    for (way, protocol, prompt), figures in zip(refusals, refused, strict=True):
        table.add_row(way, protocol.name, prompt, *figures)
    return silent, table


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.silence", description=__doc__)
    parser.add_argument("--seconds", type=float, default=70.0, help="of silence; 70 by default")
    options = parser.parse_args()
    console = Console(width=150)
    upstream = servers.Server("upstream", servers.free_port(), None)
    with ExitStack() as opened:
        proxy = opened.enter_context(servers.proxy(upstream))
        ways = {}
        for server in (upstream, proxy):
            front = opened.enter_context(servers.nginx(server))
            if front is None:
                console.print("nginx is not installed: apt-get install nginx")
                return
            ways[server.name] = f"http://127.0.0.1:{front.port}"
        for table in asyncio.run(_measure(ways, upstream.port, options.seconds)):
            console.print(table)


if __name__ == "__main__":
    main()
