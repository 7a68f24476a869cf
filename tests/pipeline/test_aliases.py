"""Names that stand for another model: what goes upstream, and by which rule its window is known."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from proxy.config.loading import ConfigError, load_text
from tests.support.upstreams import CHAT, JSON, OK_BODY, always, answer, ask, chat, proxied

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

OK = always(answer(200, OK_BODY, JSON))
MODELS: dict[str, object] = {
    "models": [{"match": "fast*", "serve_as": "gpt-4o-mini"}, {"match": "gpt-4o-mini", "context_window": "9k"}]
}


async def test_a_request_goes_out_with_the_other_name_and_by_that_models_rule(tmp_path: Path) -> None:
    body = json.loads(chat("hello", temperature=1.0)) | {"model": "fast-one"}
    async with proxied(tmp_path, OK, **MODELS) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], json.dumps(body).encode())
        assert dict(reply.headers)[b"x-compaction-window"] == b"9000"
    assert json.loads(behind.calls[0].body) == body | {"model": "gpt-4o-mini"}


@pytest.mark.parametrize(
    "text", ["hello", "half \ud83d an emoji", "x" * 300_000 + "\ud83d"], ids=["plain", "half", "large"]
)
async def test_the_other_name_holds_for_any_text_and_for_an_explanation(tmp_path: Path, text: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": text}], "model": "fast-one"}).encode()
    async with proxied(tmp_path, OK, **MODELS) as (address, behind):
        await ask(address, "POST", CHAT, [JSON, (b"x-compaction", b"off")], body)
        reply = await ask(address, "POST", "/compaction/explain", [JSON], body)
    assert json.loads(behind.calls[0].body) == json.loads(body) | {"model": "gpt-4o-mini"}
    explanation = json.loads(reply.body)
    assert (explanation["model"], explanation["window"]["tokens"]) == ("gpt-4o-mini", 9000)


@pytest.mark.parametrize("body", [chat("hello"), b'{"model": "fast", "messages": [', b'["fast"]', b""])
async def test_any_other_body_goes_out_byte_for_byte(tmp_path: Path, body: bytes) -> None:
    async with proxied(tmp_path, OK, **MODELS) as (address, behind):
        await ask(address, "POST", CHAT, [JSON], body)
        packed = gzip.compress(chat("hello", model="fast"))
        await ask(address, "POST", CHAT, [JSON, (b"content-encoding", b"gzip")], packed)
        await ask(address, "POST", "/v1/embeddings", [JSON], b'{"input": "hello", "model": "fast"}')
    assert {call.body for call in behind.calls} <= {body, packed, b'{"input": "hello", "model": "fast"}'}


def test_a_rule_for_an_alias_has_no_other_settings() -> None:
    text = "models: [{match: fast, serve_as: gpt-4o-mini, context_window: 9k}]"
    with pytest.raises(ConfigError, match="a rule with serve_as has no other settings"):
        load_text("c.yaml", text, {})
