"""Conversations at other paths than /v1, Azure's deployments above all: served like those of their dialect."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import openai
import pytest

from proxy.callers.api_paths import Mount, question_url, reading, resource, resource_url, upstream_url
from proxy.dialects.table import CHAT as CHAT_DIALECT
from proxy.dialects.table import DIALECTS, MESSAGES, RESPONSES
from tests.support.model_server import ModelServer
from tests.support.plain_talk import turns, written
from tests.support.scenarios import WINDOW, Agent
from tests.support.stages import COUNTED, DUE, SMALL, ours, outcome, stage
from tests.support.upstreams import CHAT, JSON, OK_BODY, always, answer, ask, chat, proxied, serving, upstream
from tests.support.upstreams import config_for as config_of

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import Receive, Scope, Send

    from proxy.dialects.base import Dialect

pytestmark = pytest.mark.anyio

OK = always(answer(200, OK_BODY, JSON))
NAME = "Team.GPT-4o"
DEPLOYED = f"/openai/deployments/{NAME}/chat/completions"
QUERY = "api-version=2024-10-21"
RULES: dict[str, object] = {"models": [{"match": NAME, "context_window": WINDOW}]}


class Azure(ModelServer):
    """A model server under a deployment's name, which takes a version and a key in api-key, and refuses all else."""

    def __init__(self, **how: object) -> None:
        super().__init__(**how)  # type: ignore[arg-type]
        self.targets: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, query = scope["path"], scope["query_string"].decode()
        self.targets.append(f"{scope['raw_path'].decode()}?{query}")
        headers = dict(scope["headers"])
        assert headers[b"api-key"] == b"azures"
        assert b"authorization" not in headers
        assert QUERY in query
        rest = path.removeprefix(f"/openai/deployments/{NAME}")
        await super().__call__(scope | {"path": "/v1" + rest if rest != path else "/nowhere"}, receive, send)


def unnamed(body: bytes) -> bytes:
    """As clients of Azure may send it."""
    return json.dumps({key: value for key, value in json.loads(body).items() if key != "model"}).encode()


KEY = (b"api-key", b"azures")


@pytest.mark.parametrize("decorated", [False, True])
async def test_a_deployment_is_the_model_whatever_the_body_calls_it(tmp_path: Path, decorated: bool) -> None:
    def as_sent(body: bytes) -> bytes:
        return body if decorated else unnamed(body)

    async with stage(tmp_path, model := Azure(), **RULES) as play:
        for body, expected in ((SMALL, "none"), (COUNTED, "none"), (DUE, "applied"), (DUE, "reused")):
            reply = await play.send(as_sent(body), KEY, path=f"{DEPLOYED}?{QUERY}")
            await play.settled()
            assert (reply.status, ours(reply)[""]) == (200, expected)
        models = {line.get("model") for line in play.logged("request")}
        (compaction,) = play.logged("compaction")
    assert models == {NAME}
    assert compaction["result"] != "deterministic"
    assert model.summary_calls >= 1
    assert set(model.targets) == {f"{DEPLOYED}?{QUERY}"}, "what is asked of our own too"


class Elsewhere(ModelServer):
    """A model server that is found at one place alone."""

    def __init__(self, prefix: str) -> None:
        super().__init__(window=WINDOW)
        self.prefix = prefix
        self.targets: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.targets.add(f"{path}?{scope['query_string'].decode()}")
        rest = path.removeprefix(self.prefix)
        await super().__call__(scope | {"path": "/v1" + rest if rest != path else "/nowhere"}, receive, send)


@pytest.mark.parametrize(
    ("prefix", "dialect"),
    [
        *(("/openai/v1", each) for each in DIALECTS),
        ("/openai", RESPONSES),
        ("/api/v1", CHAT_DIALECT),
        ("/inference/v1", CHAT_DIALECT),
        ("/models", CHAT_DIALECT),
        ("/anthropic/v1", MESSAGES),
    ],
)
async def test_a_conversation_at_a_mount_is_compacted_and_asked_about_there(
    tmp_path: Path, prefix: str, dialect: Dialect
) -> None:
    body = written(dialect, turns(30))
    async with stage(tmp_path, model := Elsewhere(prefix)) as play:
        path = "/".join((prefix, *dialect.path))
        for expected in ("applied", "reused"):
            reply = await play.send(body, KEY, path=f"{path}?{QUERY}&a=b")
            await play.settled()
            assert (reply.status, ours(reply)[""]) == (200, expected)
        assert model.summary_calls >= 1
        assert {f"{path}?{QUERY}", f"{path}?{QUERY}&a=b"} == {each for each in model.targets if path in each}
        if dialect.count_path is not None:
            counted = await play.send(body, KEY, path="/".join((prefix, *dialect.count_path)))
            assert (counted.status, ours(counted)[""]) == (200, "reused")


async def test_an_overflow_of_a_deployment_is_compacted_and_sent_again(tmp_path: Path) -> None:
    async with stage(tmp_path, model := Azure(window=5_000), models=[]) as play:
        reply = await play.send(unnamed(DUE), KEY, path=f"{DEPLOYED}?{QUERY}")
        await play.settled()
        assert (reply.status, outcome(reply)) == (200, ("applied", "overflow_retry"))
        again = await play.send(unnamed(DUE), KEY, path=f"{DEPLOYED}?{QUERY}")
        assert (again.status, ours(again)[""]) == (200, "reused"), "the window is learned for the deployment"
    assert set(model.targets) == {f"{DEPLOYED}?{QUERY}"}


@pytest.mark.parametrize("streams", [False, True])
async def test_openais_client_of_azure_is_served(tmp_path: Path, streams: bool) -> None:
    agent = Agent()
    agent.says("Port the ingest service.")
    async with stage(tmp_path, model := Azure(), **RULES) as play:
        async with openai.AsyncAzureOpenAI(
            azure_endpoint=play.address, api_key="azures", api_version="2024-10-21", max_retries=0
        ) as client:
            seen = []
            for _ in range(45):
                agent.works()
                made = await client.chat.completions.with_raw_response.create(
                    model=NAME,
                    messages=agent.messages,
                    stream=streams,  # type: ignore[call-overload]
                )
                seen.append(made.headers["x-compaction"])
                parsed = made.parse()
                if streams:
                    assert [chunk async for chunk in parsed]
                else:
                    assert parsed.usage.prompt_tokens
        await play.settled()
        billed = [line.get("billed") for line in play.logged("request")]
    assert {"none", "reused"} <= set(seen) <= {"none", "reused", "applied"}
    assert model.summary_calls >= 1
    assert any(billed)
    assert set(model.targets) == {f"{DEPLOYED}?{QUERY}"}
    assert all(received.status == 200 for received in model.received)


async def test_a_summarizer_of_the_policy_is_another_deployment(tmp_path: Path) -> None:
    policies = {"default": {"summarizer": {"model": "small one"}}}
    async with upstream(OK) as behind:
        config = config_of(tmp_path, behind.address, main={"base_url": behind.address}, policies=policies, **RULES)
        async with serving(config) as address:
            await ask(address, "POST", f"{DEPLOYED}?{QUERY}&user=me", [JSON, KEY], DUE)
    first, *_, last = (call.target for call in behind.calls)
    assert (first, last) == (
        f"/openai/deployments/small%20one/chat/completions?{QUERY}",
        f"{DEPLOYED}?{QUERY}&user=me",
    )
    assert all(call.header(b"api-key") == b"azures" and not call.header(b"authorization") for call in behind.calls)


async def test_a_deployment_is_never_asked_for_a_list_of_models(tmp_path: Path) -> None:
    body = unnamed(chat("word " * 3_000))
    async with upstream(OK) as behind:
        for base in ("", f"/openai/deployments/{NAME}?{QUERY}"):
            async with serving(
                config_of(tmp_path, behind.address, main={"base_url": behind.address + base})
            ) as address:
                for path in (DEPLOYED, *([CHAT] if base else [])):
                    assert (await ask(address, "POST", path, [JSON], body)).status == 200
    assert behind.questions == []


async def test_a_deployment_may_be_the_address_of_an_upstream(tmp_path: Path) -> None:
    base = f"/openai/deployments/{NAME}?{QUERY}&x=y"
    async with upstream(OK) as behind:
        config = config_of(
            tmp_path, behind.address, main={"base_url": behind.address + base, "api_key": "azures", "auth": "api-key"}
        )
        async with serving(config) as address:
            targets = (CHAT, f"{CHAT}?X=1", "/v1/embeddings", f"{DEPLOYED}?api-version=9")
            for target in targets:
                assert (await ask(address, "POST", target, [JSON], SMALL)).status == 200
    assert [call.target for call in behind.calls] == [
        f"{DEPLOYED}?{QUERY}&x=y",
        f"{DEPLOYED}?X=1&{QUERY}",
        f"/openai/deployments/{NAME}/embeddings?{QUERY}&x=y",
        f"{DEPLOYED}?api-version=9&x=y",
    ]
    assert {call.header(b"api-key") for call in behind.calls} == {b"azures"}


async def test_a_request_for_a_deployment_is_explained(tmp_path: Path) -> None:
    async with stage(tmp_path, Azure(), **RULES) as play:
        path = f"/openai/deployments/{NAME}/compaction/explain"
        told = (await play.send(unnamed(DUE), KEY, path=path)).json()
    assert (told["model"], told["outcome"], told["window"]["tokens"]) == (NAME, "applied", WINDOW)  # type: ignore[index]


@pytest.mark.parametrize("header", [b"api-key", b"x-goog-api-key", b"ocp-apim-subscription-key", b"x-api-key"])
async def test_a_key_of_ours_is_known_in_whatever_header_a_key_may_stand(tmp_path: Path, header: bytes) -> None:
    tenants = {"acme": {"keys": ["sha256:" + hashlib.sha256(b"ours").hexdigest()], "api_key": "theirs"}}
    main = {"auth": "api-key"}
    async with proxied(tmp_path, OK, tenants=tenants, closed=True, main=main) as (address, behind):
        assert (await ask(address, "POST", DEPLOYED, [JSON, (header, b"ours")], SMALL)).status == 200
        assert (await ask(address, "POST", DEPLOYED, [JSON, (header, b"other")], SMALL)).status == 401
        twice = await ask(address, "POST", DEPLOYED, [JSON, (header, b"ours"), (header, b"other")], SMALL)
        assert twice.status == 400
    (call,) = behind.calls
    assert call.header(b"api-key") == b"theirs"
    assert b"ours" not in [value for _, value in call.headers]


async def test_a_key_of_ours_stays_here_where_another_header_holds_the_upstreams(tmp_path: Path) -> None:
    tenants = {"default": {}, "acme": {"keys": ["sha256:" + hashlib.sha256(b"ours").hexdigest()]}}
    pairs = (((b"Authorization", b"Bearer ours"), KEY), ((b"api-key", b"ours"), (b"authorization", b"Bearer theirs")))
    async with proxied(tmp_path, OK, tenants=tenants) as (address, behind):
        for known, theirs in pairs:
            assert (await ask(address, "POST", DEPLOYED, [JSON, known, theirs], SMALL)).status == 200
            assert behind.calls[-1].header(known[0].lower()) is None
            assert behind.calls[-1].header(theirs[0]) == theirs[1]


async def test_keys_in_api_key_keep_sessions_apart(tmp_path: Path) -> None:
    async with stage(tmp_path, **RULES) as play:
        for key, expected in ((b"one", "applied"), (b"two", "applied"), (b"one", "reused")):
            reply = await play.send(DUE, (b"api-key", key), path=DEPLOYED)
            await play.settled()
            assert ours(reply)[""] == expected


MOUNTED = (
    # Azure
    ("/openai/deployments/N/chat/completions", ("chat", "completions"), "/openai/deployments/N", "N"),
    ("/OpenAI/Deployments/nN/Chat/Completions", ("chat", "completions"), "/OpenAI/Deployments/nN", "nN"),
    ("/openai/deployments/a%2Db/chat/completions/", ("chat", "completions"), "/openai/deployments/a%2Db", "a-b"),
    ("/openai/deployments/az%2FN/chat/completions", ("chat", "completions"), "/openai/deployments/az%2FN", "az/N"),
    ("/openai/deployments/N/extensions/chat/completions", ("chat", "completions"), None, "N"),
    ("/team/openai/deployments/N/chat/completions", ("chat", "completions"), "/team/openai/deployments/N", "N"),
    ("/openai/deployments/N/compaction/explain", ("compaction", "explain"), "/openai/deployments/N", "N"),
    ("/openai/v1/chat/completions", ("chat", "completions"), "/openai/v1", ""),
    ("/openai/v1/responses", ("responses",), "/openai/v1", ""),
    ("/openai/responses", ("responses",), "/openai", ""),
    ("/openai/v1/responses/input_tokens", ("responses", "input_tokens"), "/openai/v1", ""),
    ("/models/chat/completions", ("chat", "completions"), "/models", ""),
    ("/anthropic/v1/messages", ("messages",), "/anthropic/v1", ""),
    ("/anthropic/v1/messages/count_tokens", ("messages", "count_tokens"), "/anthropic/v1", ""),
    # OpenRouter, Fireworks, Zhipu, Volcengine, Gemini, DeepInfra, Databricks, Vertex AI, DeepSeek, SAP
    ("/api/v1/chat/completions", ("chat", "completions"), "/api/v1", ""),
    ("/api/v1/responses", ("responses",), "/api/v1", ""),
    ("/inference/v1/chat/completions", ("chat", "completions"), "/inference/v1", ""),
    ("/api/paas/v4/chat/completions", ("chat", "completions"), "/api/paas/v4", ""),
    ("/api/v3/chat/completions", ("chat", "completions"), "/api/v3", ""),
    ("/v1beta/openai/chat/completions", ("chat", "completions"), "/v1beta/openai", ""),
    ("/v1/openai/chat/completions", ("chat", "completions"), "/v1/openai", ""),
    ("/serving-endpoints/chat/completions", ("chat", "completions"), "/serving-endpoints", ""),
    ("/v1/projects/p/locations/l/endpoints/openapi/chat/completions", ("chat", "completions"), None, ""),
    ("/api/anthropic/v1/messages", ("messages",), "/api/anthropic/v1", ""),
    ("/v2/inference/deployments/d1/chat/completions", ("chat", "completions"), "/v2/inference/deployments/d1", ""),
)


@pytest.mark.parametrize(("path", "asked", "prefix", "model"), MOUNTED)
def test_what_ends_with_the_path_of_a_dialect_is_of_it(
    path: str, asked: tuple[str, ...], prefix: str | None, model: str
) -> None:
    found = reading(path.encode())
    assert (resource(found), found.mount.model) == (asked, model)
    assert found.mount.prefix == (path.removesuffix("/".join(("", *asked))) if prefix is None else prefix)


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/threads/t/messages", "/api/messages", "/surveys/1/responses", "/openai/threads/t/messages"),
        *("/openai/deployments/N/completions", "/openai/deployments/N/embeddings", "/openai/v1/responses/r"),
        *("/v1/chat/completions/c/messages", "/v1/responses/r/chat/completions", "/openai/v1/messages/batches"),
        # What a server might read otherwise than it is written.
        *("/x/..;/chat/completions", "/x/%2e%2e/v1/chat/completions", "/openai/deployments/a;b/chat/completions"),
        *("/openai/deployments/a%3Fb/chat/completions", "/openai\\v1\\chat\\completions", "/x/chat%2Fcompletions"),
        *("/openai/deployments/a%252Fb/chat/completions", "/openai/deployments/%ef%bd%8e/chat/completions"),
    ],
)
def test_what_may_be_something_else_is_relayed_as_it_came(path: str) -> None:
    assert reading(path.encode()).mount == Mount()
    assert resource(reading(path.encode())) not in {end for _, end, *_ in MOUNTED}


HOST = "https://x.example"


@pytest.mark.parametrize(
    ("base", "prefix", "expected"),
    [
        ("", "/openai/deployments/N", "/openai/deployments/N"),
        ("/v1", "/openai/deployments/N", "/openai/deployments/N"),
        ("/openai", "/openai/deployments/N", "/openai/deployments/N"),
        ("/openai/v1", "/openai/deployments/N", "/openai/deployments/N"),
        ("/openai/deployments/M", "/openai/deployments/N", "/openai/deployments/N"),
        ("/team/openai/v1", "/openai/deployments/N", "/team/openai/deployments/N"),
        ("/gateway", "/openai/deployments/N", "/gateway/openai/deployments/N"),
        ("/openai/v1", "/openai/v1", "/openai/v1"),
        ("/api/v1", "/api/v1", "/api/v1"),
        ("/inference/v1", "/inference/v1", "/inference/v1"),
        ("/api/paas/v4", "/api/paas/v4", "/api/paas/v4"),
        ("/models", "/models", "/models"),
        ("/v1/openai", "/v1/openai", "/v1/openai"),
        ("/v1", "/v1/openai", "/v1/openai"),
        ("/v1", "/anthropic/v1", "/anthropic/v1"),
        ("/api/v1", "/apix/v1", "/api/apix/v1"),
    ],
)
def test_what_both_the_address_and_the_client_name_is_named_once(base: str, prefix: str, expected: str) -> None:
    assert resource_url(HOST + base, ("chat", "completions"), "", prefix) == f"{HOST}{expected}/chat/completions"
    if prefix != "/models":
        assert upstream_url(HOST + base, f"{prefix}/files?a=b") == f"{HOST}{expected}/files?a=b"


@pytest.mark.parametrize(
    ("always", "sent", "expected"),
    [
        ("", "", ""),
        ("", "?", "?"),
        ("api-version=1", "", "?api-version=1"),
        ("api-version=1", "?", "?api-version=1"),
        ("api-version=1", "?a=%2F&b", "?a=%2F&b&api-version=1"),
        ("api-version=1", "?API-Version=2", "?API-Version=2"),
        ("api-version=1&x=y", "?api%2Dversion=2", "?api%2Dversion=2&x=y"),
    ],
)
def test_the_clients_parameters_win_over_those_of_the_address(always: str, sent: str, expected: str) -> None:
    base = f"{HOST}/v1?{always}" if always else f"{HOST}/v1"
    assert upstream_url(base, f"/v1/files{sent}") == f"{HOST}/v1/files{expected}"
    assert resource_url(base, ("files",), f"/v1/files{sent}") == f"{HOST}/v1/files{expected}"


def test_a_question_of_ours_takes_the_version_along_and_no_other_parameter() -> None:
    mount = reading(DEPLOYED.encode()).mount.for_query(f"user=me&{QUERY}")
    names = ("chat", "completions")
    assert question_url(HOST, names, mount, NAME) == f"{HOST}{DEPLOYED}?{QUERY}"
    assert question_url(HOST, names, mount, "a b/c") == f"{HOST}/openai/deployments/a%20b/c/chat/completions?{QUERY}"
    assert question_url(HOST, names, replace(mount, version=""), NAME) == f"{HOST}{DEPLOYED}"


SHARED: dict[str, object] = {"api_key": "operators-key"}


async def test_a_shared_key_goes_to_the_address_of_v1_and_the_known_paths_alone(tmp_path: Path) -> None:
    async with upstream(OK) as behind:
        main = {"base_url": f"{behind.address}/api/v1", **SHARED}
        async with serving(config_of(tmp_path, behind.address, main=main)) as address:
            for path in ("/api/v1/chat/completions", DEPLOYED, "/openai/v1/responses", "/anthropic/v1/messages"):
                assert (await ask(address, "POST", path, [JSON], SMALL)).status == 200, path
            for path in ("/other/v1/chat/completions", "/api/v2/chat/completions", "/v1/accounts/a/chat/completions"):
                assert (await ask(address, "POST", path, [JSON], SMALL)).status == 403, path
