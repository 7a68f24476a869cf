"""Both providers' SDKs run unchanged through the proxy, in the dialects that came after chat: text, streams, errors."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import anthropic
import openai
import pytest

from tests.support.model_server import Fault, ModelServer, messages, responses
from tests.support.model_server.answers import Answer, events, named_event
from tests.support.model_server.replies import Reply
from tests.support.plain_talk import turns
from tests.support.scenarios import MODEL, WINDOW
from tests.support.stages import stage

if TYPE_CHECKING:
    from types import ModuleType

    from tests.support.conversations import Json
    from tests.support.model_server import Script

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HELLO: list[Json] = [{"role": "user", "content": "hello"}]
NODE = Path(__file__).parents[1] / "sdk"
LONG = turns(30)
TOO_LONG: list[Json] = [{"role": "system", "content": "too long " * 20_000}, *HELLO]
HASTY = {"default": {"keepalive": "20ms", "summarizer": {"timeout": "20s"}}}


class Sdk(Protocol):
    """One provider's SDK.

    errors: its classes. words: by which it knows an overflow. broken: an error in the middle of a stream.
    """

    name: str
    errors: ModuleType
    words: str
    broken: Json

    async def says(self, address: str, items: list[Json], *, stream: bool, retries: int = 0) -> str:
        """What is answered; raises as the SDK does."""

    def refused(self, status: int, message: str) -> Answer:
        """As the provider refuses."""

    def begun(self, reply: Reply) -> Answer:
        """A stream of its events."""


@dataclass(frozen=True)
class OpenAI:
    """Its Responses API."""

    name = "openai"
    errors = openai
    words = "Your input exceeds the context window of this model"
    broken: ClassVar[Json] = {
        "type": "error",
        "code": "server_error",
        "message": "It broke.",
        "param": None,
        "sequence_number": 9,
    }

    async def says(self, address: str, items: list[Json], *, stream: bool, retries: int = 0) -> str:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="sk-test", max_retries=retries) as client:
            asked = await client.responses.create(model=MODEL, input=items, stream=stream)
            if not stream:
                return str(asked.output_text)
            said = ""
            async for event in asked:
                if event.type == "error":  # in OpenAI's own shape it is handed over, and raised by nobody
                    raise openai.APIError(event.message, asked.response.request, body=None)
                said += event.delta if event.type == "response.output_text.delta" else ""
            return said

    def refused(self, status: int, message: str) -> Answer:
        return responses.refusal(status, message)

    def begun(self, reply: Reply) -> Answer:
        return responses.stream(reply, MODEL, 0, None)


@dataclass(frozen=True)
class Anthropic:
    """Its Messages API."""

    name = "anthropic"
    errors = anthropic
    words = "prompt is too long"
    broken: ClassVar[Json] = {"type": "error", "error": {"type": "overloaded_error", "message": "It broke."}}

    async def says(self, address: str, items: list[Json], *, stream: bool, retries: int = 0) -> str:
        async with anthropic.AsyncAnthropic(base_url=address, api_key="sk-test", max_retries=retries) as client:
            system = "".join(str(item["content"]) for item in items if item["role"] == "system") or anthropic.omit
            others = [item for item in items if item["role"] != "system"]
            asked = {"model": MODEL, "max_tokens": 256, "system": system, "messages": others}
            if not stream:
                return str((await client.messages.create(**asked)).content[0].text)
            async with client.messages.stream(**asked) as streamed:
                return str((await streamed.get_final_message()).content[0].text)

    def refused(self, status: int, message: str) -> Answer:
        return messages.refusal(status, message)

    def begun(self, reply: Reply) -> Answer:
        return messages.stream(reply, MODEL, 0, None)


SDKS: list[Sdk] = [OpenAI(), Anthropic()]
both = pytest.mark.parametrize("sdk", SDKS, ids=lambda sdk: sdk.name)
either = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streaming"])


def once(answer: Answer) -> Script:
    """The first request is answered by this."""
    return lambda number, _: Fault(answer) if number == 0 else None


@both
async def test_a_long_conversation_is_compacted_and_its_task_kept(tmp_path: Path, sdk: Sdk) -> None:
    said = turns(0)
    async with stage(tmp_path) as play:
        for number in range(40):
            answer = await sdk.says(play.address, said, stream=bool(number % 2))
            said += [{"role": "assistant", "content": answer}, turns(number + 1)[-1]]
        said[-1] = {"role": "user", "content": "What is the task?"}
        assert "never delete src/main.py" in await sdk.says(play.address, said, stream=False)
        await play.settled()
        assert {line["compaction"] for line in play.logged("request")} >= {"none", "reused"}
        assert play.model.summary_calls > 0
        assert play.model.defects == 0


@both
@either
@pytest.mark.parametrize("policy", ["upstream", "client", "openai"])
async def test_an_overflow_that_nothing_solves_is_a_bad_request_in_known_words(
    tmp_path: Path, sdk: Sdk, policy: str, stream: bool
) -> None:
    async with stage(tmp_path, policies={"default": {"overflow_error": policy}}) as play:
        with pytest.raises(sdk.errors.BadRequestError) as caught:
            await sdk.says(play.address, TOO_LONG, stream=stream)
    assert sdk.words in caught.value.message
    if policy != "upstream":
        assert str(WINDOW) in caught.value.message
    if sdk.name == "openai":
        assert caught.value.code == "context_length_exceeded"


@both
@either
@pytest.mark.parametrize(
    ("error", "settings", "items"),
    [
        ("AuthenticationError", {"closed": True, "tenants": {"default": {}}}, HELLO),
        ("PermissionDeniedError", {"tenants": {"default": {"paths": ["GET /v1/models"]}}}, HELLO),
        ("NotFoundError", {"upstreams": {"main": {"base_url": "http://127.0.0.1:9/v1", "speaks": ["chat"]}}}, HELLO),
        ("APIStatusError", {"server": {"max_body_bytes": 2_048}}, TOO_LONG),
        ("InternalServerError", {"upstreams": {"main": {"base_url": "http://127.0.0.1:9/v1"}}}, HELLO),
    ],
)
async def test_our_own_errors_are_of_the_class_of_their_status(
    tmp_path: Path, sdk: Sdk, stream: bool, error: str, settings: dict[str, object], items: list[Json]
) -> None:
    async with stage(tmp_path, **settings) as play:
        with pytest.raises(getattr(sdk.errors, error)) as caught:
            await sdk.says(play.address, items, stream=stream)
        assert not play.model.received
    if error == "APIStatusError":
        assert caught.value.status_code == 413
    assert caught.value.body, "it was read as an error of the provider"


@both
async def test_where_we_are_overloaded_an_sdk_comes_again(tmp_path: Path, sdk: Sdk) -> None:
    """It waits for the second that `retry-after` asks for."""
    held, arrived = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        arrived.set()
        await held.wait()

    model = ModelServer(window=WINDOW, script=lambda number, _: Fault(before=hold) if number == 0 else None)
    async with stage(tmp_path, model, server={"max_requests": 1}) as play:
        first = asyncio.create_task(sdk.says(play.address, HELLO, stream=False))
        await arrived.wait()
        with pytest.raises(sdk.errors.InternalServerError) as caught:
            await sdk.says(play.address, HELLO, stream=False)
        assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "1")
        again = asyncio.create_task(sdk.says(play.address, HELLO, stream=False, retries=1))
        while len([line for line in play.logged("request") if line.get("status") == 503]) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        held.set()
        assert await first == await again == "Noted; 1 messages read."


@both
@either
async def test_an_overloaded_provider_is_told_of_as_such_and_asked_again(
    tmp_path: Path, sdk: Sdk, stream: bool
) -> None:
    model = ModelServer(window=WINDOW, script=once(sdk.refused(529, "Overloaded")))
    async with stage(tmp_path, model) as play:
        with pytest.raises(sdk.errors.InternalServerError) as caught:
            await sdk.says(play.address, HELLO, stream=stream)
        assert caught.value.status_code == 529
    model = ModelServer(window=WINDOW, script=once(sdk.refused(529, "Overloaded")))
    async with stage(tmp_path, model) as play:
        assert await sdk.says(play.address, HELLO, stream=stream, retries=1) == "Noted; 1 messages read."
        assert len(play.model.received) == 2


@both
async def test_an_error_in_the_middle_of_a_stream_is_raised(tmp_path: Path, sdk: Sdk) -> None:
    *begun, _, _, _ = sdk.begun(Reply("Half of it is")).chunks
    model = ModelServer(window=WINDOW, script=once(events(*begun, named_event(sdk.broken))))
    async with stage(tmp_path, model) as play:
        with pytest.raises(sdk.errors.APIError, match="It broke"):
            await sdk.says(play.address, HELLO, stream=True)


@both
async def test_signs_of_life_before_an_answer_disturb_nobody(tmp_path: Path, sdk: Sdk) -> None:
    async with stage(tmp_path, ModelServer(window=WINDOW, summaries="slow"), policies=HASTY) as play:
        asked = asyncio.create_task(sdk.says(play.address, LONG, stream=True))
        await play.commented()
        play.model.let_summaries_go.set()
        assert (await asked).startswith("Noted; ")
        (line,) = play.logged("request")
    assert (line["comments"], line["compaction"]) >= (2, "applied")


@both
async def test_an_error_behind_signs_of_life_is_raised(tmp_path: Path, sdk: Sdk) -> None:
    def refuse(_: int, body: bytes) -> Fault | None:
        return None if b"<transcript>" in body else Fault(sdk.refused(400, f"{sdk.words}: 9000 tokens > 8192 maximum"))

    async with stage(tmp_path, ModelServer(window=WINDOW, summaries="slow", script=refuse), policies=HASTY) as play:
        asked = asyncio.create_task(sdk.says(play.address, LONG, stream=True))
        await play.commented()
        play.model.let_summaries_go.set()
        with pytest.raises(sdk.errors.APIError, match=sdk.words):
            await asked


async def test_node_runs_all_of_this(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules" / "@anthropic-ai").is_dir():
        missing = "the SDKs for Node are not installed: run `npm ci` in tests/sdk (needs Node 20)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    overloaded = messages.refusal(529, "Overloaded")
    model = ModelServer(window=WINDOW, script=lambda _, body: Fault(overloaded) if b"answer 529" in body else None)
    async with stage(tmp_path, model, server={"max_body_bytes": 500_000}) as play:
        env = {
            "OPENAI_BASE_URL": f"{play.address}/v1", "OPENAI_API_KEY": "sk-test", "PATH": os.environ["PATH"],
            "ANTHROPIC_BASE_URL": play.address, "ANTHROPIC_API_KEY": "sk-test",
        }  # fmt: skip
        running = await asyncio.create_subprocess_exec(
            node, "dialects.mjs", cwd=NODE, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, errors = await asyncio.wait_for(running.communicate(), 90)
        assert running.returncode == 0, errors.decode()
        assert play.model.defects == 0
        assert {line["compaction"] for line in play.logged("request") if "compaction" in line} >= {"none", "reused"}
    told = {(line["dialect"], line["step"]): line for line in map(json.loads, out.splitlines())}
    for dialect, words in (("messages", "prompt is too long"), ("responses", "exceeds the context window")):
        assert told[dialect, "whole"]["text"] == told[dialect, "stream"]["text"] == "Noted; 1 messages read."
        assert "never delete src/main.py" in told[dialect, "long"]["text"]
        for step in ("overflow", "overflowStreaming"):
            assert (told[dialect, step]["name"], words in told[dialect, step]["message"]) == ("BadRequestError", True)
        assert told[dialect, "overloaded"]["status"] == 529
        assert told[dialect, "overloaded"]["name"] in ("InternalServerError", "OverloadedError")
        assert told[dialect, "large"]["status"] == 413
