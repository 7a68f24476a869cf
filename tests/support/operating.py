"""A running proxy as an operator has it: its config file changes, its sessions are listed and erased."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from proxy.app import App
from proxy.config.reloading import Reloader
from tests.support.long_conversations import SMALL_WINDOW
from tests.support.upstreams import CHAT, JSON, Header, Reply, ask, chat

TOKEN = "the-operators-token"
BEARER = (b"Authorization", f"Bearer {TOKEN}".encode())
LABEL = (b"X-Session-Id", b"the deploy")
SESSIONS = "/admin/api/sessions"
OPERATED = {"server": {"admin_token": TOKEN}, **SMALL_WINDOW}


@dataclass
class Running:
    """A proxy whose config file is `file`; what it logs is read back as events."""

    app: App
    address: str
    file: Path
    log: io.BytesIO
    ports: Mapping[str, str] = field(default_factory=dict)

    @property
    def reloader(self) -> Reloader:
        assert self.app.reloader is not None
        return self.app.reloader

    def events(self, name: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == name]

    async def settle(self) -> None:
        """As many looks as it takes to see a change and that it stays."""
        await self.reloader.poll()
        await self.reloader.poll()

    async def chat(self, *headers: Header) -> Reply:
        return await ask(self.address, "POST", CHAT, [JSON, *headers], chat("a"))

    async def ready(self) -> tuple[int, dict[str, object]]:
        reply = await ask(self.address, "GET", "/readyz")
        return reply.status, reply.json()

    async def counted(self) -> tuple[int, int]:
        """Reloads that succeeded, and that failed."""
        text = (await ask(self.address, "GET", "/metrics", [BEARER])).body.decode()
        lines = [line.rpartition(" ") for line in text.splitlines()]
        found = {name: int(float(value)) for name, _, value in lines if name.startswith("concertina_config_reloads")}
        name = 'concertina_config_reloads_total{result="%s"}'
        return found[name % "success"], found[name % "failed"]


def settings(address: str, **more: object) -> dict[str, object]:
    return {
        "server": {"admin_token": TOKEN, "max_body_bytes": 100_000},
        "store": {"url": "memory://"},
        "upstreams": {"main": {"base_url": f"{address}/v1"}},
        **more,
    }


def write(file: Path, values: Mapping[str, object]) -> None:
    file.write_text(yaml.safe_dump(dict(values), sort_keys=False), encoding="utf-8")


async def erased(address: str, name: str) -> Reply:
    return await ask(address, "DELETE", f"{SESSIONS}/{name}", [BEARER], b"")


async def listed(address: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = (await ask(address, "GET", SESSIONS, [BEARER], b"")).json()["sessions"]
    return found


async def enrolled(address: str, number: int) -> list[dict[str, object]]:
    """The sessions, once there are so many."""
    async with asyncio.timeout(30):
        while True:
            found = await listed(address)
            if len(found) == number:
                return found
