"""A fourth dialect, unlike the others, through a socket: nothing was changed for it but the table."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shlex
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proxy.dialects.base import Usage
from tests.support.dialects import PLAIN, Called, model, results, user
from tests.support.fourth_dialect.writer import GeminiWriter, stream
from tests.support.long_conversations import RECORD, is_summary
from tests.support.processes import config, event, served
from tests.support.stages import ours
from tests.support.upstreams import CHUNKED, JSON, Call, answer, ask, chunk, head, upstream

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator

    from tests.support.upstreams import Header, Reply, Script, Upstream

pytestmark = pytest.mark.anyio

WRITER = GeminiWriter()
NAME = "Gemini-2.5-Pro"
PATH = f"/v1beta/models/{NAME}:generateContent"
STREAM = f"/v1beta/models/{NAME}:streamGenerateContent"
COUNT = f"/v1beta/models/{NAME}:countTokens"
USAGE = Usage(1_234, 56)
OK = answer(200, WRITER.answer("Fine.", USAGE), JSON)
KEY: Header = (b"x-goog-api-key", b"tenant-key")
TOO_LONG = answer(
    400,
    b'{"error":{"code":400,"status":"INVALID_ARGUMENT","message":'
    b'"The input token count (9000) exceeds the maximum number of tokens allowed (4000)."}}',
    JSON,
)
NO_MODEL = {"default": {"summarizer": {"model": "none"}}}


class Proxy:
    """The process, where it listens, and what is behind it."""

    def __init__(self, process: subprocess.Popen[str], address: str, behind: Upstream) -> None:
        self._process = process
        self._address = address
        self.behind = behind

    async def send(self, body: bytes, *headers: Header, path: str = PATH) -> Reply:
        return await ask(self._address, "POST", path, [JSON, *headers], body)

    async def logged(self, name: str) -> dict[str, object]:
        return await asyncio.to_thread(event, self._process, name)


@asynccontextmanager
async def proxied(directory: Path, script: Script, **settings: object) -> AsyncIterator[Proxy]:
    """The whole proxy as a process of its own, whose table has one row more before anything asks it."""
    file, root = directory / "config.yaml", Path(__file__).parents[2]
    program = (sys.executable, "-m", "tests.support.fourth_dialect.serve")
    async with upstream(script) as behind:
        config(file, behind.address, **settings)
        with served(file, f"export PYTHONPATH={shlex.quote(str(root))}", program) as (process, port):
            yield Proxy(process, f"http://127.0.0.1:{port}", behind)


def body(rounds: int = 1, **more: object) -> bytes:
    """A session of an agent; a round takes some 300 tokens."""
    history = [user("Fix the build.")]
    for number in range(rounds):
        call = f"c{number}"
        history += [model(f"Step {number}.", Called(call, "read_file")), results(**{call: f"line {number}. " * 60})]
    items = [item for entry in history for item in WRITER.items(entry, PLAIN)]
    return json.dumps({**WRITER.fields(), "contents": items, **more}, indent=1).encode()


def is_clients(call: Call) -> bool:
    """Whether it is the client's own, and no question of ours."""
    return b"You code." in call.body and not is_summary(call)


def said(sent: bytes) -> list[str]:
    """Texts of what the model was sent."""
    return [part["text"] for item in json.loads(sent)["contents"] for part in item["parts"] if "text" in part]


async def test_a_request_is_counted_under_its_paths_model_and_relayed_as_it_came(tmp_path: Path) -> None:
    async with proxied(tmp_path, respond(OK)) as proxy:
        reply = await proxy.send(body(), path=f"{PATH}?alt=json")
        (call,) = proxy.behind.calls
        line = await proxy.logged("request")
    assert (reply.status, reply.body) == (200, WRITER.answer("Fine.", USAGE))
    assert (call.target, call.body) == (f"{PATH}?alt=json", body())
    assert ours(reply)[""] == "none"
    assert int(ours(reply)["tokens-received"]) > 100
    told = (line["wire"], line["model"], line["stream"], line["billed"], line["output"])
    assert told == ("gemini", NAME, False, 1_234, 56)
    assert line["route"] == "/v1beta/models/*:generateContent"


async def test_a_stream_is_an_array_that_passes_as_it_comes(tmp_path: Path) -> None:
    whole = stream(WRITER.events("Fine.", USAGE))
    first, rest = whole[:200], whole[200:]
    async with proxied(tmp_path, respond(head(200, JSON, CHUNKED), chunk(first), chunk(rest), chunk(b""))) as proxy:
        reply = await proxy.send(body(), path=STREAM)
        line = await proxy.logged("request")
    assert (reply.status, reply.body, reply.complete) == (200, whole, True)
    assert (line["stream"], line["billed"], line["output"]) == (True, 1_234, 56)


async def test_a_long_streams_usage_is_read_from_its_end(tmp_path: Path) -> None:
    whole = stream(WRITER.events("word " * 60_000, USAGE))
    async with proxied(tmp_path, respond(head(200, JSON, CHUNKED), chunk(whole), chunk(b""))) as proxy:
        reply = await proxy.send(body(), path=STREAM)
        line = await proxy.logged("request")
    assert reply.body == whole
    assert (line["billed"], line["output"]) == (1_234, 56)


@pytest.mark.parametrize("path", [PATH, STREAM])
async def test_an_overflow_is_answered_by_a_compacted_request(tmp_path: Path, path: str) -> None:
    async with proxied(tmp_path, respond_in_turn(TOO_LONG, OK), policies=NO_MODEL) as proxy:
        reply = await proxy.send(body(30), path=path)
        first, second = proxy.behind.calls
    assert (reply.status, ours(reply)[""]) == (200, "applied")
    assert [call.target for call in (first, second)] == [path, path]
    assert len(second.body) < len(first.body) / 2
    sent, given = json.loads(second.body), json.loads(body(30))
    assert {key: sent[key] for key in sent if key != "contents"} == {
        key: given[key] for key in given if key != "contents"
    }
    assert sent["contents"][-1] == given["contents"][-1]
    assert said(second.body)[0] != "Fix the build."


async def test_an_overflow_in_an_array_is_one_too(tmp_path: Path) -> None:
    inside = b"[" + TOO_LONG.partition(b"\r\n\r\n")[2] + b"]"
    async with proxied(tmp_path, respond_in_turn(answer(200, inside, JSON), OK), policies=NO_MODEL) as proxy:
        reply = await proxy.send(body(30), path=STREAM)
    assert (reply.status, ours(reply)[""]) == (200, "applied")


async def test_what_is_too_large_in_any_case_is_told_in_its_own_words(tmp_path: Path) -> None:
    policies = {"default": {"summarizer": {"model": "none"}, "overflow_error": "client"}}
    contents = WRITER.items(user("word " * 20_000), PLAIN)
    async with proxied(tmp_path, respond(TOO_LONG), policies=policies) as proxy:
        reply = await proxy.send(json.dumps({"contents": contents}).encode())
    told = reply.json()["error"]
    assert reply.status == 400
    assert told["status"] == "INVALID_ARGUMENT"
    assert "exceeds the maximum number of tokens allowed (4000)" in told["message"]


async def test_an_unknown_models_error_passes_as_it_came(tmp_path: Path) -> None:
    unknown = b'{"error":{"code":404,"message":"models/x is not found","status":"NOT_FOUND"}}'
    async with proxied(tmp_path, respond(answer(404, unknown, JSON))) as proxy:
        reply = await proxy.send(body(), path="/v1beta/models/x:generateContent")
    assert (reply.status, reply.body) == (404, unknown)


async def test_a_records_place_is_found_again_and_calls_keep_their_results(tmp_path: Path) -> None:
    settings = {"policies": NO_MODEL, "models": [{"match": NAME, "context_window": 4_000}]}
    async with proxied(tmp_path, respond(OK), **settings) as proxy:
        first, second = [await proxy.send(body(rounds)) for rounds in (30, 31)]
        sent = [json.loads(call.body)["contents"] for call in proxy.behind.calls]
    assert (ours(first)[""], ours(second)[""]) == ("applied", "reused")
    for contents in sent:
        parts = [part for item in contents for part in item["parts"]]
        calls = [part["functionCall"]["id"] for part in parts if "functionCall" in part]
        assert calls == [part["functionResponse"]["id"] for part in parts if "functionResponse" in part]


async def test_a_nested_limit_is_lowered_where_it_stands(tmp_path: Path) -> None:
    refused = answer(
        400,
        b'{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"max_tokens is too large: 5000. This model\'s'
        b" maximum context length is 4000 tokens and your request has 1000 input tokens (5000 > 4000 - 1000)."
        b'"}}',
        JSON,
    )
    generation = {"topK": 40, "maxOutputTokens": 5_000}
    async with proxied(tmp_path, respond_in_turn(refused, OK)) as proxy:
        reply = await proxy.send(body(1, generationConfig=generation))
        first, *_, last = proxy.behind.calls
    assert reply.status == 200
    assert json.loads(first.body)["generationConfig"] == generation
    lowered = json.loads(last.body)["generationConfig"]
    assert lowered["topK"] == 40
    assert lowered["maxOutputTokens"] < 4_000
    assert ours(reply)["max-output"] == str(lowered["maxOutputTokens"])


async def test_bad_json_is_refused_in_its_own_form(tmp_path: Path) -> None:
    async with proxied(tmp_path, respond(OK)) as proxy:
        reply = await proxy.send(b'{"contents": [')
        assert proxy.behind.calls == []
    assert reply.status == 400
    assert reply.json()["error"]["status"] == "INVALID_ARGUMENT"
    assert reply.json()["error"]["code"] == 400


async def test_tokens_are_counted_by_its_upstream_and_a_request_is_explained(tmp_path: Path) -> None:
    counted = b'{"totalTokens": 7}'
    settings = {"policies": NO_MODEL, "models": [{"match": "*", "context_window": 4_000}]}
    async with proxied(tmp_path, respond(answer(200, counted, JSON)), **settings) as proxy:
        reply = await proxy.send(body(), path=COUNT)
        explained = await proxy.send(body(30), path="/v1/compaction/explain?dialect=gemini")
        (call,) = proxy.behind.calls
    assert (reply.body, call.target, call.body) == (counted, COUNT, body())
    assert explained.json()["dialect"] == "gemini"
    assert explained.json()["outcome"] == "applied"


@pytest.mark.parametrize("key", ["", "upstream-key"])
async def test_a_tenants_key_is_known_and_the_upstreams_own_is_sent(tmp_path: Path, key: str) -> None:
    tenants = {"default": {}, "acme": {"keys": ["sha256:" + hashlib.sha256(b"tenant-key").hexdigest()]}}
    async with upstream(respond(OK)) as behind:
        own = {"base_url": f"{behind.address}/v1beta", "auth": "x-goog-api-key", "api_key": key, "speaks": ["gemini"]}
        async with proxied(tmp_path, respond(OK), upstreams={"main": own}, tenants=tenants) as proxy:
            reply = await proxy.send(body(), KEY)
            line = await proxy.logged("request")
        (call,) = behind.calls
    assert (reply.status, line["tenant"]) == (200, "acme")
    assert call.header(b"x-goog-api-key") == (key or "tenant-key").encode()
    assert call.target == PATH


async def test_a_record_is_written_by_its_own_model_under_its_clients_key(tmp_path: Path) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(answer(200, WRITER.answer("Fine." if is_clients(call) else RECORD, USAGE), JSON))

    async with proxied(tmp_path, script, models=[{"match": NAME, "context_window": 9_000}]) as proxy:
        reply = await proxy.send(body(60), KEY)
        calls = proxy.behind.calls
        line = await proxy.logged("compaction")
    assert (reply.status, ours(reply)[""]) == (200, "applied")
    assert line.get("refused") is None
    assert sum(map(is_clients, calls)) == 1 < len(calls)
    assert {(call.target, call.header(b"x-goog-api-key")) for call in calls} == {(PATH, b"tenant-key")}
    assert "Something was said about it" in said(calls[-1].body)[0]


async def test_an_api_that_its_upstream_does_not_speak_is_refused_in_that_apis_form(tmp_path: Path) -> None:
    async with upstream(respond(OK)) as behind:
        own = {"main": {"base_url": f"{behind.address}/v1", "speaks": ["chat"]}}
        async with proxied(tmp_path, respond(OK), upstreams=own) as proxy:
            reply = await proxy.send(body())
    assert reply.status == 404
    assert reply.json()["error"]["status"] == "NOT_FOUND"


async def test_another_api_of_an_upstream_that_speaks_it_alone_is_refused(tmp_path: Path) -> None:
    async with upstream(respond(OK)) as behind:
        own = {"main": {"base_url": f"{behind.address}/v1beta", "speaks": ["gemini"]}}
        async with proxied(tmp_path, respond(OK), upstreams=own) as proxy:
            refused = await proxy.send(b'{"model":"m","messages":[{"role":"user","content":"x"}]}', path="/v1/messages")
    assert refused.status == 404


def respond(*parts: bytes) -> Script:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(*parts)

    return script


def respond_in_turn(*answers: bytes) -> Script:
    left = list(answers)

    async def script(call: Call) -> None:
        await call.read()
        await call.send(left.pop(0) if len(left) > 1 else left[0])

    return script
