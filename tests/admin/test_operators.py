"""What the pages for operators and the command tell of models."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from policies.decision.overflow_retries import StatedLimit
from proxy.callers.tenants import Tenants
from proxy.config.loading import load
from proxy.models.windows import Windows, place_of
from proxy.sessions.stores import Sealer
from proxy.sessions.stores.sealing import SealedStore
from proxy.sessions.stores.sqlite import SqliteStore
from tests.support.long_conversations import long_request, refused
from tests.support.upstreams import CHAT, JSON, OK_BODY, answer, ask, in_turn, proxied, upstream

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
TOKEN = "t-0123456789abcdef"
BEARER = (b"Authorization", f"Bearer {TOKEN}".encode())
PAGES = ("/metrics", "/admin/api/models")


@pytest.mark.parametrize("page", PAGES)
async def test_a_page_is_never_relayed(tmp_path: Path, page: str) -> None:
    server = {"admin_token": TOKEN}
    async with proxied(tmp_path, in_turn(answer(200, OK_BODY, JSON)), server=server) as (address, behind):
        reply = await ask(address, "GET", page)
        assert (reply.status, reply.json()["error"]["code"]) == (401, "invalid_api_key")  # type: ignore[index]
        assert (await ask(address, "GET", page, [BEARER])).status == 200
        assert not behind.calls


async def test_the_view_of_models_says_which_source_won(tmp_path: Path) -> None:
    script = in_turn(refused(20_000, 0), answer(200, OK_BODY, JSON))
    policies = {"default": {"summarizer": {"model": "none"}}}
    async with proxied(tmp_path, script, policies=policies, server={"admin_token": TOKEN}) as (address, behind):
        assert (await ask(address, "POST", CHAT, [JSON], long_request())).status == 200
        (known,) = (await ask(address, "GET", "/admin/api/models", [BEARER])).json()["models"]  # type: ignore[misc]
    assert (known["place"]["tenant"], known["place"]["model"]) == ("default", "m")
    assert known["place"]["base_url"] == f"{behind.address}/v1"
    assert known["window"] == {"tokens": 16_385, "max_output": None, "source": "learned", "of_prompt": False}
    assert (known["configured"], known["learned"], known["asked"], known["listed"]) == (None, 16_385, None, None)


def run(*arguments: str, config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy", "models", *arguments, "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def settings(directory: Path, base_url: str, **more: object) -> Path:
    store = {"url": f"sqlite:///{directory}/store.db"}
    upstreams = {"main": {"base_url": base_url, "api_key": "k"}}
    (directory / "c.yaml").write_text(json.dumps({"store": store, "upstreams": upstreams, **more}))
    return directory / "c.yaml"


async def test_the_command_tells_what_config_store_and_table_say(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/v1"
    config = settings(tmp_path, url, models=[{"match": "mine", "context_window": 50_000}, {"match": "x*"}])
    store = SqliteStore(tmp_path / "store.db")
    windows = Windows(None, SealedStore(store, Sealer(None), 600.0), lambda: 4e9)  # type: ignore[arg-type]
    (operator,) = Tenants(load(config, {})).all_of("default")
    place = place_of("default", operator.scope, url, "taught")
    windows.saw_overflow(place, StatedLimit(8_192), 1)
    await windows.share(place)
    await store.close()
    table = run("taught", "mine", "gpt-4o", config=config).stdout.splitlines()
    rows = {model: row for model, *row in map(str.split, table)}
    assert rows["taught"][:3] == ["8,192", "(learned)", "-"]
    assert rows["mine"][:3] == ["50,000", "(policy)", "50,000"]
    assert rows["gpt-4o"][:2] == ["128,000", "(table)"]
    assert [line.split()[0] for line in run(config=config).stdout.splitlines()] == ["model", "mine"]
    (told,) = json.loads(run("taught", "--json", config=config).stdout)
    assert (told["learned"], told["window"]["source"]) == (8_192, "learned")


async def test_the_command_asks_upstreams_if_wished(tmp_path: Path) -> None:
    async with upstream(in_turn(b"")) as behind:
        behind.facts["/v1/models"] = b'{"data": [{"id": "m", "max_model_len": 4096}]}'
        config = settings(tmp_path, f"{behind.address}/v1")
        quiet = await asyncio.to_thread(run, "m", config=config)
        assert not behind.questions
        asked = await asyncio.to_thread(run, "m", "--ask", config=config)
    assert "unknown" in quiet.stdout
    assert "4,096 (asked)" in asked.stdout
    assert behind.questions[0].header(b"authorization") == b"Bearer k"


@pytest.mark.parametrize(
    ("arguments", "said"), [((), "the config names no model"), (("m", "--tenant", "x"), "no tenant has this name")]
)
def test_the_command_says_what_is_missing(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments, config=settings(tmp_path, "http://127.0.0.1:9/v1"))
    assert result.returncode == 1
    assert said in result.stderr
