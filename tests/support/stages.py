"""The whole proxy on a stage: a model server behind it, its log in memory, and requests of every size."""

from __future__ import annotations

import asyncio
import io
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from proxy.app import App
from proxy.telemetry.events import RequestEnded
from proxy.telemetry.log import open_log
from tests.support.model_server import ModelServer
from tests.support.scenarios import MODEL, WINDOW, Agent, usable, user
from tests.support.servers import configured, serve
from tests.support.upstreams import CHAT, ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from proxy.compaction.engine import Engine
    from tests.support.model_server import ReceivedRequest
    from tests.support.upstreams import Header, Reply

B = usable(WINDOW)
CONTENT = "the client's own words"
# Nothing else may be in the line of a request.
LOG_FIELDS = {"ts", "level", "event", *RequestEnded.__struct_fields__}


# Seconds that something in the background may take.
SOON = 60.0
# Seconds after which a test that waits for what never comes fails, and says where it waited.
_PATIENCE = 240


@dataclass
class Stage:
    """A model server, the proxy before it, and what the proxy logs."""

    address: str
    model: ModelServer
    _log: io.BytesIO = field(repr=False)
    _app: App = field(repr=False)

    async def send(self, body: bytes, *headers: Header, path: str = CHAT) -> Reply:
        return await ask(self.address, "POST", path, [(b"content-type", b"application/json"), *headers], body)

    async def settled(self) -> None:
        """Until every request has ended, and so has what it set off in the background."""
        while self._app._pipeline.open_requests._open:  # noqa: ASYNC110 - a request's end sets no event
            await asyncio.sleep(0)
        while under_way := self.engine.background._tasks:
            await asyncio.wait(under_way)

    async def commented(self) -> None:
        """Until a client that waits has been sent two signs of life."""
        while not any(exchange.comments > 1 for exchange in self._app._pipeline.open_requests._open):  # noqa: ASYNC110 - sets no event
            await asyncio.sleep(0)

    @property
    def engine(self) -> Engine:
        opened = self._app._opened
        assert opened is not None
        return opened.engine

    @property
    def sent(self) -> list[ReceivedRequest]:
        """What the model was asked, summaries left out."""
        return [received for received in self.model.received if received.method == "POST" and not received.is_summary]

    @property
    def log(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._log.getvalue().splitlines()]

    def forget(self) -> None:
        """What was logged."""
        self._log.seek(0)
        self._log.truncate()

    def logged(self, event: str) -> list[dict[str, object]]:
        return [line for line in self.log if line["event"] == event]


def settings_of(directory: Path, *, inspect: bool = True) -> dict[str, object]:
    """Settings of a stage with a store of its own and a token for its pages, whose records no model writes."""
    return {
        "store": {"url": f"sqlite:///{directory}/s.db", "secret": "s"},
        "server": {"admin_token": "t" * 16},
        "models": [{"match": MODEL, "context_window": WINDOW}],
        "policies": {"default": {"summarizer": {"model": "none"}}},
        "tenants": {"default": {"inspect": inspect}},
    }


@asynccontextmanager
async def stage(
    directory: Path,
    model: ModelServer | None = None,
    *,
    level: str = "debug",
    log: io.BytesIO | None = None,
    native: str = "auto",
    headers: Mapping[str, str] | None = None,
    **settings: object,
) -> AsyncIterator[Stage]:
    """A stage; `settings` are sections of the config, laid over the ones that every stage has. `native`: of its
    upstream, as `native_compaction`. headers: of its upstream."""
    model = model or ModelServer(window=WINDOW)
    log = log or io.BytesIO()
    async with serve(model) as upstream, asyncio.timeout(_PATIENCE):
        config = configured(
            directory,
            {
                "store": {"url": "memory://"},
                "upstreams": {
                    "main": {"base_url": f"{upstream}/v1", "native_compaction": native, "headers": dict(headers or {})}
                },
                "models": [{"match": MODEL, "context_window": WINDOW}],
                **settings,
            },
        )
        app = App(config, open_log(level, time.time, log))
        async with serve(app, lifespan="on") as address:
            yield Stage(address, model, log, app)


def history(share: float) -> list[dict[str, object]]:
    """A conversation that takes about this share of the usable input; a round takes 3 % of it."""
    agent = Agent()
    agent.says(CONTENT)
    for _ in range(round(share * B / 195)):
        agent.works()
    return agent.messages


def body(messages: object, **more: object) -> bytes:
    """A request in a formatting that nobody would make anew."""
    text = json.dumps({"model": MODEL, "messages": messages, **more}, indent=1, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")  # halves of emoji as JSON escapes them


SMALL = body([user(CONTENT)])
COUNTED = body(history(0.24))
FLOOR = body(history(0.7))
DUE = body(history(0.85))
MUST = body(history(1.2))


def ours(reply: Reply) -> dict[str, str]:
    """The control headers of an answer, by what follows `x-compaction`."""
    headers = [(name.lower().decode(), value.decode()) for name, value in reply.headers]
    return {
        name.removeprefix("x-compaction").removeprefix("-"): value
        for name, value in headers
        if name.startswith("x-compaction")
    }


def outcome(reply: Reply) -> tuple[str, str]:
    told = ours(reply)
    return told[""], told["reason"]


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what happens in the background; sleeping lets it."""
    async with asyncio.timeout(SOON):
        while not holds():  # noqa: ASYNC110 - a log line and a model's call set no event
            await asyncio.sleep(0.005)


def made(play: Stage) -> list[object]:
    """The results of the compactions that have ended, by trigger."""
    return [(line["trigger"], line["result"]) for line in play.logged("compaction")]
