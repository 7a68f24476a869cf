"""An agent that goes on and on, against an upstream whose refusals state no number."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.dialects.base import Usage
from tests.support.dialects import PLAIN, Called, Entry, Writer, model, path_of, request_body, results, user
from tests.support.scenarios import prose
from tests.support.upstreams import JSON, Call, Script, answer, connected, proxied

# What the upstream takes, by its own count, and what everybody believes that it takes.
LIMIT, BELIEVED = 40_000, 200_000
REQUESTS = 150
SMALL, LARGE = 400, 5_000

_WITHOUT_MODEL = {"default": {"extends": "default", "summarizer": {"model": "none"}}}
_CONFIGURED = {"models": [{"match": "*", "context_window": BELIEVED}]}
_HEADERS = (JSON, (b"authorization", b"Bearer sk-agent"))
_HEAD = "You are a coding agent."
_ITEMS = {"items": "stand here"}
# Of the table in use, a model whose window is larger than the limit; and one that no table knows.
_LISTED, _UNLISTED = "gpt-4o", "nobody-knows-it"


@dataclass(frozen=True)
class Setting:
    """What is believed of the window, and how large the results of the agent's tools are."""

    name: str
    model: str
    config: Mapping[str, object]
    result_tokens: int


SETTINGS = tuple(
    Setting(f"{name}, results of {tokens:,}", model_name, config, tokens)
    for name, model_name, config in (
        ("config larger", _UNLISTED, _CONFIGURED),
        ("table larger", _LISTED, {}),
        ("unknown", _UNLISTED, {}),
    )
    for tokens in (SMALL, LARGE)
)


def _chat(words: str) -> bytes:
    return json.dumps({"error": {"message": words, "type": "invalid_request_error", "code": None}}).encode()


# The same agents, where the window is known: what the others are measured by.
KNOWN = tuple(
    Setting(f"known, results of {tokens:,}", _UNLISTED, {"models": [{"match": "*", "context_window": LIMIT}]}, tokens)
    for tokens in (SMALL, LARGE)
)


# How it refuses, in shapes of each dialect: none states a number.
REFUSALS: Mapping[str, Sequence[bytes]] = {
    "chat": (
        _chat("Your input exceeds the context window of this model. Please adjust your input and try again."),
        json.dumps({"base_resp": {"status_code": 2013, "status_msg": "context window exceeds limit"}}).encode(),
        json.dumps({"error": "The tokens to keep of the prompt are more than the context length."}).encode(),
    ),
    "responses": (
        json.dumps(
            {"error": {"message": "Your input exceeds the context window of this model.", "type": None,
                       "param": "input", "code": "context_length_exceeded"}}
        ).encode(),
    ),
    "messages": (json.dumps({"message": "Input is too long for requested model."}).encode(),),
}  # fmt: skip


@dataclass
class Played:
    """What came of a session: by the upstream's own count, and by what the proxy said it had done."""

    requests: int = 0
    refused: int = 0
    passed_on: int = 0
    records: int = 0
    tokens: int = 0
    tokens_in_vain: int = 0


def session(writer: Writer, setting: Setting, requests: int = REQUESTS) -> Iterator[bytes]:
    """The growing requests of an agent."""
    fields = {**writer.fields(), "model": setting.model, "max_tokens": 99}
    before, after = json.dumps(request_body(writer.dialect, _HEAD, [_ITEMS], fields)).split(json.dumps(_ITEMS))
    # Each item is written once: whole, the requests of a session have 370 MB.
    items: list[str] = []
    grown: list[Entry] = [user("Move every total to cents. Never touch vendor/.")]
    for number in range(requests):
        items += [json.dumps(item) for entry in grown for item in writer.items(entry, PLAIN)]
        yield f"{before}{', '.join(items)}{after}".encode()
        call = Called(f"c{number}", "read_file", f"src/part_{number}.py")
        grown = [model("I read on.", call), results(**{call.id: prose(number, setting.result_tokens)})]


def refusing(writer: Writer, refusal: bytes, played: Played, limit: int = LIMIT) -> Script:
    """An upstream that counts four bytes as a token, and refuses what is more than its limit."""

    async def script(call: Call) -> None:
        tokens = len(await call.read()) // 4
        played.tokens += tokens
        if tokens > limit:
            played.refused += 1
            played.tokens_in_vain += tokens
            await call.send(answer(400, refusal, JSON))
        else:
            await call.send(answer(200, writer.answer("Fine.", Usage(tokens, 10)), JSON))

    return script


async def play(writer: Writer, setting: Setting, refusal: bytes, requests: int = REQUESTS) -> Played:
    """One session through the proxy, over loopback."""
    played, dialect = Played(), writer.dialect
    with tempfile.TemporaryDirectory() as folder:
        script = refusing(writer, refusal, played)
        parts = {"policies": _WITHOUT_MODEL, **setting.config}
        async with proxied(Path(folder), script, **parts) as (address, _), connected(address) as client:
            for body in session(writer, setting, requests):
                reply = await client.ask("POST", path_of(dialect), _HEADERS, body)
                played.requests += 1
                played.passed_on += reply.status != 200
                played.records += reply.header(b"x-compaction") == b"applied"
    return played
