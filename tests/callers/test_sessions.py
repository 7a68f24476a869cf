"""The label of a session: whose word counts, and that it cannot do harm."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.model_server import ModelServer
from tests.support.scenarios import MODEL, user
from tests.support.stages import CONTENT, SMALL, body, ours, stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.upstreams import Header

pytestmark = pytest.mark.anyio


# Sources of a session's label, first match first.
LABELS: tuple[tuple[str, Header | dict[str, object]], ...] = (
    ("a", (b"X-Session-Id", b"a")),
    ("b", (b"X-Claude-Code-Session-Id", b"b")),
    ("c", (b"Session-Id", b"c")),
    ("d", (b"session_id", b"d")),
    ("d2", (b"Thread-Id", b"d2")),
    ("e", (b"X-Session-Affinity", b"e")),
    ("e2", (b"X-Affinity", b"e2")),
    ("f", (b"x-opencode-session", b"f")),
    ("g", (b"X-LiteLLM-Session-Id", b"g")),
    ("h", (b"Helicone-Session-Id", b"h")),
    ("i", (b"X-OpenWebUI-Chat-Id", b"i")),
    ("j", {"prompt_cache_key": "j"}),
    ("k", {"conversation": "k"}),
    ("l", {"metadata": {"session_id": "l", "user_id": "m"}}),
    ("m", {"metadata": {"user_id": "m"}}),
)


async def test_the_label_is_the_first_that_the_client_gave(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        for number, (label, _) in enumerate(LABELS):
            given = [source for _, source in LABELS[number:]]
            fields: dict[str, object] = {}
            for source in reversed(given):
                fields |= source if isinstance(source, dict) else {}
            headers = [source for source in given if isinstance(source, tuple)]
            reply = await play.send(body([user(CONTENT)], **fields), *reversed(headers))
            assert ours(reply)["label"] == label


async def test_a_session_has_one_name_in_headers_and_log_whatever_its_label(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        named, unnamed = [await play.send(SMALL, *headers) for headers in ([(b"x-session-id", b"s")], [])]
        assert ours(named)["session"] == ours(unnamed)["session"]
        assert [line["session"] for line in play.logged("request")] == [ours(named)["session"]] * 2


async def test_without_a_label_a_session_is_named_by_how_it_began(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        first, longer, other = [
            ours(await play.send(body(messages)))["session"]
            for messages in ([user("a")], [user("a"), {"role": "assistant", "content": "b"}, user("c")], [user("d")])
        ]
        assert re.fullmatch("[0-9a-f]{16}", first)
        assert first == longer != other
        assert [line["session"] for line in play.logged("request")] == [first, longer, other]


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ("a\r\nx-evil: 1", "a??x-evil: 1"),
        ("a\nx-evil: 1\x00\x1b[2J", "a?x-evil: 1??[2J"),
        ("\u2028é会话🎐", "?????"),
        ("x" * 300, "x" * 128),
        ("\ud800", "?"),
    ],
)
@pytest.mark.parametrize("name", ["prompt_cache_key", "conversation"])
async def test_a_label_cannot_add_headers(tmp_path: Path, name: str, given: str, label: str) -> None:
    async with stage(tmp_path, ModelServer(window=None)) as play:
        request = json.dumps({"model": MODEL, "messages": [user(CONTENT)], name: given}).encode()
        reply = await play.send(request)
        assert reply.status == 200
        assert ours(reply)["label"] == label
        assert reply.header(b"x-evil") is None
        assert play.sent[-1].body == request
        assert [line["label"] for line in play.logged("request")] == [label]


async def test_a_label_in_a_header_is_made_printable_and_passes_upstream_as_it_came(tmp_path: Path) -> None:
    async with stage(tmp_path) as play:
        reply = await play.send(SMALL, (b"x-session-id", "会\t".encode() + b"x"))
        assert ours(reply)["label"] == "????x"
        assert (b"x-session-id", "会\t".encode() + b"x") in play.sent[-1].headers


@pytest.mark.parametrize("value", [17, None, "", ["a"], {"id": "a"}, True])
async def test_what_is_no_text_is_no_label(tmp_path: Path, value: object) -> None:
    fields = {"prompt_cache_key": value, "conversation": value, "metadata": {"session_id": value}}
    async with stage(tmp_path) as play:
        reply = await play.send(body([user(CONTENT)], **fields), (b"x-session-id", b""))
        assert "label" not in ours(reply)
