"""Histories that no agent should send, through a small window: nothing of ours fails, and no pair is torn.

Results that come late, twice, shuffled or never, ids used again, every role, parts of every kind, halves of emoji,
calls of every shape. CONCERTINA_HISTORIES says how many; 20,000 take five minutes.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.conversations import Json
from tests.support.model_server import ModelServer
from tests.support.stages import Stage, ours, stage

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HISTORIES = int(os.environ.get("CONCERTINA_HISTORIES", "400"))
WINDOW = 2_048
RECORD = "<conversation_record>"
SETTINGS = {
    "models": [{"match": "*", "context_window": WINDOW}],
    "policies": {
        "default": {"summarizer": {"model": "none"}},
        "asking": {},
        "covering": {"summarizer": {"model": "none"}, "compress_system_messages": True},
        "separated": {"summarizer": {"model": "none"}, "separator": "/new"},
    },
    "tenants": {"default": {"policies": ["default", "asking", "covering", "separated"]}},
}
ODD = ("", "\ud83d", "\udc4d x", "\x00", "\U0001f468\u200d\U0001f469", "e\u0301\u0323", "\u202e", "</s>", "{}", "必须")
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "critic", None)


class Histories:
    """Makes them, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._results = 0

    def next(self) -> list[Json]:
        chance = self._chance
        messages: list[Json] = []
        waiting: list[Json] = []
        for _ in range(chance.randrange(1, 40)):
            messages += self._step(waiting)
        return messages + waiting[: chance.randrange(3)]

    def _step(self, waiting: list[Json]) -> Iterator[Json]:
        """What comes next; results may be put off, forgotten and given twice."""
        chance = self._chance
        match chance.randrange(10):
            case 0 | 1:
                yield {"role": "user", "content": self._content()}
            case 2 | 3 | 4 | 5:
                call = self._calling()
                yield call
                results = [self._result(str(each["id"])) for each in call["tool_calls"]]  # type: ignore[attr-defined]
                chance.shuffle(results)
                for result in results:
                    if chance.random() < 0.15:
                        waiting.append(result)
                    elif chance.random() > 0.08:
                        yield result
            case 6:
                while waiting and chance.random() < 0.7:
                    yield waiting.pop(chance.randrange(len(waiting)))
            case 7:
                yield {"role": "assistant", "content": self._content(), **self._thoughts()}
            case 8:
                yield self._result(chance.choice(("c0", "c1", "nobody's")))
            case _:
                yield {"role": chance.choice(ROLES), "content": self._content(), "name": chance.choice((None, "n"))}

    def _calling(self) -> Json:
        chance = self._chance
        calls = [
            {
                "id": f"c{chance.randrange(12)}",
                "type": chance.choice(("function", "custom")),
                "function": {"name": chance.choice(("read", "write_file", "")), "arguments": self._arguments()},
            }
            for _ in range(chance.randrange(1, 4))
        ]
        return {"role": "assistant", "content": chance.choice((None, self._text())), "tool_calls": calls}

    def _result(self, call: str) -> Json:
        self._results += 1
        return {"role": "tool", "tool_call_id": call, "content": f"result-{self._results}- {self._text()}"}

    def _arguments(self) -> object:
        path = {"path": f"src/{self._text()[:20]}.py"}
        return self._chance.choice((json.dumps(path), "{", "", "[[1]]", '"\\ud83d"', path))

    def _thoughts(self) -> Json:
        return self._chance.choice(
            ({}, {"reasoning_content": "hm"}, {"thinking_blocks": [{"signature": "s"}]}, {"x": 1e9})
        )

    def _text(self) -> str:
        chance = self._chance
        words = ("never", "delete", "port", "8080", "src/a.py", "then", "端口改为", "ok", "a1b2c3d4e5", *ODD)
        return " ".join(chance.choices(words, k=chance.randrange(1, 60)))

    def _content(self) -> object:
        part = self._chance.choice(
            (
                {"type": "text", "text": self._text()},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
                {"type": "refusal", "refusal": self._text()},
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "nobody's", "x": [None, {}]},
                "text",
                None,
            )
        )
        return self._chance.choice((self._text(), self._text(), self._text(), [part], [part, part], [], None, "/new"))


def pairs(messages: list[Json]) -> dict[str, tuple[str, ...]]:
    """The calls that each result may be the answer to: those of its id from before it, marked by where they stand."""
    found: dict[str, tuple[str, ...]] = {}
    makers: dict[str, list[str]] = {}
    for message in messages:
        for call in message.get("tool_calls") or []:  # type: ignore[attr-defined]
            makers.setdefault(str(call["id"]), []).append(json.dumps(message, sort_keys=True))
        if message.get("tool_call_id") is not None:
            found[str(message["content"]).split("-", 2)[1]] = tuple(makers.get(str(message["tool_call_id"]), ()))
    return found


def torn(received: list[Json], sent: list[Json]) -> list[str]:
    """Results that lost every call they may belong to, and calls that lost a result that stood behind them."""
    before, after = pairs(received), pairs(sent)
    orphans = [result for result, calls in after.items() if before[result] and not calls]
    kept = [json.dumps(message, sort_keys=True) for message in sent if message.get("tool_calls")]
    lost = [
        result
        for result, calls in before.items()
        if result not in after and len(set(calls)) == 1 and calls[0] in kept and kept.count(calls[0]) == 1
    ]
    return [f"result {result} without its call" for result in orphans] + [f"call without result {r}" for r in lost]


async def play(stage: Stage, histories: Histories, policy: str) -> list[str]:
    """What went wrong with one history."""
    messages = histories.next()
    request = json.dumps({"model": "m", "messages": messages, "stream": len(messages) % 2 == 0}).encode()
    asked = stage.model.requests
    reply = await stage.send(request, (b"x-compaction-policy", policy.encode()))
    wrong = [f"{reply.status}: {reply.body[:300]!r}"] if reply.status >= 500 else []
    if stage.model.requests == asked or not stage.sent:
        return wrong
    told, body = ours(reply).get(""), stage.sent[-1].body
    sent = json.loads(body)["messages"]
    if told in ("applied", "reused", "cooled") and policy != "separated":
        wrong += torn(messages, sent)
    if told in ("none", "bypass") and body != request:
        wrong.append("not the client's bytes")
    return wrong


@pytest.mark.parametrize("policy", ["default", "asking", "covering", "separated"])
async def test_nothing_of_ours_fails_whatever_a_history_holds(tmp_path: Path, policy: str) -> None:
    histories = Histories(7)
    compacted = 0
    async with stage(tmp_path, ModelServer(window=None, remember=4), **SETTINGS) as played:
        for number in range(HISTORIES // 4):
            wrong = await play(played, histories, policy)
            assert not wrong, f"history {number}: {wrong}"
            compacted += RECORD.encode() in played.sent[-1].body
            assert not played.logged("failed_open"), f"history {number}"
            played.forget()
    assert compacted > HISTORIES // 20
