"""`concertina demo`: one long session played twice, directly with a model of 8,192 tokens and through the proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode

import msgspec
from rich.console import Console

from proxy.admin.endpoints import ADMIN
from proxy.app import App
from proxy.cli.demo import show
from proxy.cli.demo.chat_server import MODEL, WINDOW, ChatServer
from proxy.cli.demo.serving import serving
from proxy.cli.demo.show import AskedFact, DemoStep, Result
from proxy.cli.demo.story import PLANTED, TOOLS, Message, Planted, histories, user
from proxy.config.loading import Config, load
from proxy.config.settings import DEFAULT, Upstream
from proxy.upstreams.http import UpstreamClient

PORT = 8795
_PATH = "/v1/chat/completions"
_SETTING = "OPENAI_BASE_URL={address}/v1"
_OK = 200
_LABEL = "split-the-invoices"
_HEADERS = [(b"content-type", b"application/json"), (b"x-session-id", _LABEL.encode())]
_MOST = 1024 * 1024

_CONFIG = """\
store: {{url: "sqlite:///{directory}/demo.db"}}
upstreams: {{main: {{base_url: "{upstream}/v1"}}}}
models: [{{match: "*", context_window: {window}, encoding: o200k_base}}]
logging: {{level: warning}}
"""


class _ResponseMessage(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _ResponseMessage


class _Error(msgspec.Struct):
    code: str | None = None


class _ResponseBody(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Error = msgspec.field(default_factory=_Error)


@dataclass(frozen=True, slots=True)
class _ClientResponse:
    """A response as the client of the session reads it."""

    status: int
    headers: dict[str, str]
    body: _ResponseBody

    @property
    def text(self) -> str:
        return "".join(choice.message.content or "" for choice in self.body.choices)

    @property
    def outcome(self) -> str:
        """Return `ok`, or the status and the code of the error."""
        return "ok" if self.status == _OK else f"{self.status} {self.body.error.code or ''}".rstrip()


async def run_demo(*, once: bool, console: Console) -> int:
    """Play the session, print it, and return the exit code.

    On a terminal the proxy keeps running until Ctrl-C, unless `once` is set.
    """
    async with demo_stage() as stage:
        show.opening(console, stage.address, WINDOW, stage.dashboard if console.is_terminal else None)
        with show.live(console) as add:
            steps = []
            async for step in stage.play():
                steps.append(step)
                add(step)
        facts = [await stage.ask(fact) for fact in PLANTED]
        result = Result(steps, facts, stage.model.summaries, stage.model.summary_tokens)
        show.closing(console, result, _SETTING.format(address=stage.address))
        if not result.passed:
            return 1
        if console.is_terminal and not once:
            show.staying(console, stage.session_page)
            # Ctrl-C cancels the main task, and is the regular end here.
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
    return 0


class Stage:
    """The model, the proxy before it, and a client of both."""

    def __init__(self, model: ChatServer, upstream: str, app: App, address: str, client: UpstreamClient) -> None:
        """Create a stage over the addresses of a running model and proxy."""
        self.model = model
        self.app = app
        self.address = address
        self._upstream = upstream
        self._client = client
        self._history: Sequence[Message] = ()
        self._session = ""

    @property
    def dashboard(self) -> str:
        """Return the address of the dashboard, with the token that opens it."""
        token = self.app.admin_token
        assert token is not None  # noqa: S101 - the app is open while there is a stage
        return f"{self.address}{ADMIN}?token={token.value}"

    @property
    def session_page(self) -> str:
        """Return the address of the session's page, with the token that opens it."""
        page = f"sessions/{self._session}?{urlencode({'tenant': DEFAULT, 'label': _LABEL})}"
        return f"{self.dashboard}&{urlencode({'next': page})}"

    async def play(self) -> AsyncIterator[DemoStep]:
        """Send every request of the story through the proxy, and directly until that fails."""
        direct = "ok"
        for number, self._history in enumerate(histories(), start=1):
            direct = (await self._send(self._upstream, self._history)).outcome if direct == "ok" else ""
            through = await self._send(self.address, self._history)
            self._session = through.headers.get("x-compaction-session", "")
            yield DemoStep(
                number,
                received=int(through.headers.get("x-compaction-tokens-received", 0)),
                sent=int(through.headers.get("x-compaction-tokens-sent", 0)),
                direct=direct,
                through=through.outcome,
                compaction=through.headers.get("x-compaction", "missing"),
            )

    async def ask(self, fact: Planted) -> AskedFact:
        """Ask the model for the fact at the end of the session, directly and through the proxy."""
        messages = [*self._history, user(fact.question)]
        directly = await self._send(self._upstream, messages)
        response = await self._send(self.address, messages)
        return AskedFact(
            fact.name,
            directly=directly.text or directly.outcome,
            through=response.text or response.outcome,
            known=fact.is_in(response.text),
        )

    async def _send(self, address: str, messages: Sequence[Message]) -> _ClientResponse:
        body = json.dumps({"model": MODEL, "messages": messages, "tools": TOOLS}).encode()
        upstream = Upstream(base_url=f"{address}/v1")
        response = await self._client.send(upstream, "POST", address + _PATH, _HEADERS, body)
        try:
            headers = {name.decode().lower(): value.decode("latin-1") for name, value in response.headers}
            return _ClientResponse(response.status, headers, _read_body(await response.read(_MOST) or b""))
        finally:
            response.close()


def _read_body(body: bytes) -> _ResponseBody:
    """Decode the body of a response. Return an empty one if it is no JSON."""
    try:
        return msgspec.json.decode(body, type=_ResponseBody)
    except msgspec.DecodeError:
        return _ResponseBody()


@asynccontextmanager
async def demo_stage() -> AsyncIterator[Stage]:
    """Run the model and a proxy with an empty store."""
    async with AsyncExitStack() as opened:
        directory = opened.enter_context(TemporaryDirectory(prefix="concertina-demo-"))
        model = ChatServer()
        upstream = await opened.enter_async_context(serving(model.app))
        app, address = await _open_proxy(_config(Path(directory), upstream), opened)
        client = await opened.enter_async_context(UpstreamClient())
        yield Stage(model, upstream, app, address, client)


def _config(directory: Path, upstream: str) -> Config:
    """Return the built-in defaults with the model as the upstream. No environment variable counts."""
    file = directory / "config.yaml"
    file.write_text(_CONFIG.format(directory=directory, upstream=upstream, window=WINDOW), encoding="utf-8")
    return load(file, {})


async def _open_proxy(config: Config, opened: AsyncExitStack) -> tuple[App, str]:
    """Serve the proxy at its usual port, or at any free port if that is taken."""
    app = App(config)
    try:
        return app, await opened.enter_async_context(serving(app, port=PORT, lifespan="on"))
    except OSError:
        return app, await opened.enter_async_context(serving(app, lifespan="on"))
