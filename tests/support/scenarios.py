"""Conversations as agents have them, the stage they are played on, and what is measured of what went upstream."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import aiohttp
import msgspec
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from proxy.compaction.compactor import Compactor
from proxy.runtime.background import Background
from proxy.runtime.stepping import _StartedCoroutine
from tests.support.model_server import ModelServer
from tests.support.servers import configured, proxy, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
    from pathlib import Path

    from tests.support.model_server import ReceivedRequest

Message = dict[str, object]
Change = Callable[[Sequence[Message], int], list[Message]]
"""How a client writes its history with its n-th request."""

MODEL = "gpt-4o"
WINDOW = 8_192
TASK = "Port the ingest service to the new queue and keep the old topic names."
RULES = (
    "Never push to the branch release/7.4 without asking me.",
    "The error budget is 0.25 percent.",
    "Always write migrations to db/migrations/ingest.",
)
FIRST = "\n".join((TASK, *RULES))
TASK_ZH = "把导入服务迁移到新的消息队列，并保留原来的主题名称。"
RULE_ZH = "未经我同意，绝对不要推送到 release/7.4 分支。"

_WORDS = re.findall(
    r"\w+",
    """queue topic worker offset batch retry schema column index cache shard replica lease token cursor stream window
    latency budget config handler parser buffer socket thread lock commit branch module fixture record header payload
    reads writes drops keeps moves checks opens closes splits merges the a each every this that before after with""",
)
_SIGNS = "队列主题消费者偏移批次重试模式字段索引缓存分片副本租约令牌游标窗口延迟处理解析缓冲线程提交分支模块记录"


@lru_cache(4_096, typed=True)
def prose(seed: object, words: int) -> str:
    """Deterministic text, about 1.1 tokens a word."""
    chosen = random.Random(str(seed)).choices(_WORDS, k=words)
    return "\n".join(" ".join(chosen[start : start + 12]) for start in range(0, words, 12))


@lru_cache(4_096, typed=True)
def chinese(seed: object, signs: int) -> str:
    """Deterministic text, about one token a sign."""
    return "".join(random.Random(str(seed)).choices(_SIGNS, k=signs)) + "。"


# About 5 kB of text.
ROUND_WORDS = 820
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": prose(number, 300),
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for number in range(24)
]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


@dataclass
class Agent:
    """A client: it keeps its whole history and sends it again with every request."""

    system: str | None = "You are a careful coding agent."
    name: str = "agent"
    words: int = 150
    write: Callable[[object, int], str] = prose
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.system is not None and not self.messages:
            self.messages.append({"role": "system", "content": self.system})

    def says(self, text: str) -> list[Message]:
        """The request after the user said something."""
        if self.messages and self.messages[-1]["role"] == "tool":
            self.messages.append({"role": "assistant", "content": f"Done with {self.name} so far."})
        self.messages.append(user(text))
        return self.messages

    def works(self, *, calls: int = 1) -> list[Message]:
        """The request after another round of tool calls; the results of parallel ones arrive shuffled."""
        number = len(self.messages)
        made = [_call(f"call_{number}_{i}", f"src/{self.name}/part_{number}.py") for i in range(calls)]
        results = [_result(f"call_{number}_{i}", self.write((self.name, number, i), self.words)) for i in range(calls)]
        random.Random(number).shuffle(results)
        self.messages += [{"role": "assistant", "content": None, "tool_calls": made}, *results]
        return self.messages

    def fork(self, name: str) -> Agent:
        """Another agent that goes on from here under its own name."""
        return Agent(self.system, name, self.words, self.write, deepcopy(self.messages))


def _call(identity: str, path: str) -> Message:
    return {
        "id": identity,
        "type": "function",
        "function": {"name": "read_file", "arguments": json.dumps({"path": path})},
    }


def _result(identity: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": identity, "content": content}


def session(agent: Agent, *, task: str = FIRST, requests: int = 50, turn: int = 10) -> Iterator[list[Message]]:
    """Tools and user turns; `task` is the first message."""
    for number in range(requests):
        if number == 0:
            yield agent.says(task)
        elif number % turn == 0:
            yield agent.says(f"Good. Go on with part {number // turn}, please.")
        else:
            yield agent.works(calls=1 + number % 2)


def one_user(agent: Agent, rounds: int = 200) -> Iterator[list[Message]]:
    """One user message, then nothing but rounds of tool calls."""
    yield agent.says(FIRST)
    for _ in range(rounds):
        yield agent.works()


def large_head(words: int = ROUND_WORDS) -> Agent:
    """Its tools take 9,000 tokens, its system prompt as many."""
    return Agent(system=prose("head", 7_800), words=words)


def clock(number: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_795_302_400 + 37 * number))


def in_first(text: str, messages: Sequence[Message]) -> list[Message]:
    changed = deepcopy(list(messages))
    first = next(message for message in changed if message["role"] == "user")
    first["content"] = f"{text}\n{first['content']}"
    return changed


def stamped_first(messages: Sequence[Message], number: int) -> list[Message]:
    return in_first(f"Current time: {clock(number)}", messages)


def stamped_results(messages: Sequence[Message], number: int) -> list[Message]:
    return [m | {"content": f"[{clock(number)}] read\n{m['content']}"} if m["role"] == "tool" else m for m in messages]


def newest(messages: Sequence[Message], kept: int, most: int = 30) -> list[Message]:
    """The first `kept` messages and the newest of the others, from a message on that is no result."""
    rest = list(messages[kept:])[-most:]
    while rest and rest[0]["role"] == "tool":
        rest.pop(0)
    return [*messages[:kept], *rest]


def sliding(messages: Sequence[Message], number: int) -> list[Message]:
    return newest(messages, 1)


def sliding_behind_the_task(messages: Sequence[Message], number: int) -> list[Message]:
    return newest(messages, 2)


@dataclass(frozen=True)
class Reply:
    """What the client got."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def received(self) -> int:
        """The request's tokens by the proxy's estimate."""
        return int(self.headers["x-compaction-tokens-received"])


class _Messages(msgspec.Struct):
    messages: msgspec.Raw


@dataclass(frozen=True)
class Sent:
    """One request as the model server got it."""

    received: ReceivedRequest

    @property
    def raw(self) -> bytes:
        """The bytes of the messages array."""
        return bytes(msgspec.json.decode(self.received.body, type=_Messages).messages)

    @property
    def messages(self) -> list[Message]:
        decoded: list[Message] = json.loads(self.raw)
        return decoded

    @property
    def texts(self) -> str:
        return "\n".join(str(message.get("content")) for message in self.messages)

    @property
    def instructions(self) -> list[Message]:
        return [message for message in self.messages if message["role"] in ("system", "developer")]


_UNDER_WAY = {work.__qualname__ for work in (RequestResponseCycle.run_asgi, Background._run, Compactor._claim_and_make)}


class Stage:
    """A model server, proxies before it, and a client of these."""

    def __init__(self, model: ModelServer, addresses: Sequence[str], client: aiohttp.ClientSession) -> None:
        self.model = model
        self.addresses = addresses
        self.replies: list[Reply] = []
        self._client = client
        self._sent_before = len(_answered(model))

    async def send(self, messages: Sequence[Message], **more: object) -> Reply:
        """The next request, with everything checked that must hold for every single one."""
        reply = await self.post(messages, **more)
        self._check(messages)
        return reply

    async def post(self, messages: Sequence[Message], *, replica: int = 0, model: str = MODEL, **more: object) -> Reply:
        body = {"model": model, "messages": messages, **more}
        async with self._client.post(f"{self.addresses[replica]}/v1/chat/completions", json=body) as response:
            headers = {key.lower(): value for key, value in response.headers.items()}
            reply = Reply(response.status, headers, await response.read())
        self.replies.append(reply)
        return reply

    async def settled(self) -> None:
        await until_settled()

    async def play(self, requests: Iterable[Sequence[Message]], **more: object) -> list[Reply]:
        return [await self.send(messages, **more) for messages in requests]

    @property
    def sent(self) -> list[Sent]:
        """What the model answered, summaries left out."""
        return _answered(self.model)[self._sent_before :]

    @property
    def calls(self) -> int:
        """Summarizer calls so far."""
        return self.model.summary_calls

    def _check(self, messages: Sequence[Message]) -> None:
        """No error, no defect; the task, the client's own instructions and its newest message are there."""
        reply = self.replies[-1]
        assert reply.status == 200, reply.body[:500]
        assert self.model.defects == 0
        assert len(self.sent) == len(self.replies)
        sent = self.sent[-1]
        task = next(str(message["content"]) for message in messages if message["role"] == "user")
        assert task.splitlines()[0] in sent.texts
        assert sent.instructions == [m for m in messages if m["role"] in ("system", "developer")]
        assert sent.messages[-1] == messages[-1]


async def until_settled() -> None:
    """Until every request to proxies of this event loop has ended, and so has what it set off in the background."""
    while tasks := [task for task in asyncio.all_tasks() if _is_under_way(task)]:
        await asyncio.wait(tasks)


def _is_under_way(task: asyncio.Task[object]) -> bool:
    work = task.get_coro()
    return isinstance(work, _StartedCoroutine) or getattr(work, "__qualname__", "") in _UNDER_WAY


def _answered(model: ModelServer) -> list[Sent]:
    chats = (received for received in model.received if received.method == "POST" and not received.is_summary)
    return [Sent(received) for received in chats if received.status == 200]


@asynccontextmanager
async def stage(
    directory: Path, model: ModelServer | None = None, *, replicas: int = 1, port: int = 0, **settings: object
) -> AsyncIterator[Stage]:
    """A stage with one proxy, or several replicas; `settings` are sections of the config, `port` the model's own."""
    async with AsyncExitStack() as opened:
        model = model or ModelServer(window=WINDOW)
        upstream = await opened.enter_async_context(serve(model, port=port))
        config = configured(directory, defaults(directory, upstream) | settings)
        addresses = [await opened.enter_async_context(proxy(config)) for _ in range(replicas)]
        client = await opened.enter_async_context(aiohttp.ClientSession())
        yield Stage(model, addresses, client)


def defaults(directory: Path, upstream: str) -> dict[str, object]:
    """The config of a scenario: everything as it comes, but for the upstream, its window and the store's place."""
    return {
        "store": {"url": f"sqlite:///{directory}/store.db"},
        "upstreams": {"main": {"base_url": f"{upstream}/v1"}},
        "models": [{"match": "*", "context_window": WINDOW}],
        "logging": {"level": "warning"},
    }


def usable(window: int) -> int:
    """B for a request that does not say how much it wants, of a model whose tokenizer is known."""
    return window - window // 10 - int(0.03 * window)


def most_calls(history: float, usable_input: float) -> int:
    """The summarizer calls that a history of so many tokens may cost while it grows."""
    return math.ceil((history - 0.8 * usable_input) / (0.35 * usable_input)) + 1


def prefix_reuse(sent: Sequence[Sent]) -> float:
    """The share of a request's messages that the next one repeats byte for byte from the start, on average."""
    arrays = [one.raw.removesuffix(b"]") for one in sent]
    return sum(_common_prefix(a, b) / len(a) for a, b in pairwise(arrays)) / (len(arrays) - 1)


def _common_prefix(a: bytes, b: bytes) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


LOUD = {
    "large_messages": {"threshold": 1_000, "hot_rounds": 1},
    "compaction_threshold": 0.95,
    "overflow_threshold": 0.96,
}


def loud(numbers: int, tokens: int = 1_500, small: int = 0) -> list[Message]:
    """A session whose tools say much, and then little."""
    agent = Agent()
    agent.says("Find the fault. " + RULES[0])
    for number in range(numbers):
        agent.works()
        agent.messages[-1]["content"] = f"line {number} of the log says nothing new\n" * (tokens // 9)
    for _ in range(small):
        agent.works()
        agent.messages[-1]["content"] = "ok"
    return agent.messages
