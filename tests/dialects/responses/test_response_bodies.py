"""Bodies as no client should send them, and as real ones do: read without harm, and sent on with their own bytes."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from policies.conversation.conversation import MessageIndex
from policies.decision.assemble import Injected, MergedMessage, UserWords, assemble
from policies.decision.legal_cuts import legal_cuts
from proxy.dialects.reader import CountedRequest, RequestReader
from proxy.dialects.table import RESPONSES
from proxy.errors import InvalidJSONError
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.runtime.workers import Workers
from tests.support.conversations import Json
from tests.support.strict_responses import defects, parted

TOKENIZER = Tokenizer()
TOKENIZER.warm(DEFAULT_ENCODING)
RECORD = "What was said before."
REFERENCE = os.environ.get("CONCERTINA_REFERENCE")

HISTORY: list[Json] = [
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
    {"role": "user", "content": "Fix the build. \U0001f600"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm.", "annotations": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": '{"path": "a.py"}'},
    {"type": "custom_tool_call", "call_id": "c2", "name": "edit", "input": "+ x"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
    {"type": "function_call_output", "call_id": "c1", "output": "def f(): ..."},
    {"type": "reasoning", "id": "rs_2", "summary": []},
    {"type": "shell_call", "call_id": "c3", "action": {"commands": ["ls"], "env": {"a": None}}},
    {"type": "shell_call_output", "call_id": "c3", "output": [{"stdout": "a.py", "stderr": "", "outcome": {}}]},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "find", "arguments": "{}", "output": "found"},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": [{"type": "input_image", "image_url": "x"}, {"type": "input_text", "text": "?"}]},
    {"type": "local_shell_call", "id": "l1", "call_id": "c4", "action": {"type": "exec", "command": ["ls"], "env": {}}},
    {"type": "local_shell_call_output", "id": "c4", "output": "a.py"},
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "phase": "final"},
    {"role": "user", "content": "Thanks."},
]  # fmt: skip
ODD: list[object] = [
    *(None, True, 0, -1, 1e300, "", "x", [], {}, [[]], [{}], [None], {"type": []}, {"role": 7}, "\ud83d", "x" * 3_000),
    *([{"type": "text", "text": 7}], {"type": "input_image"}, [{"type": "input_image", "image_url": {}}], [[["x"]]]),
    *([{"stdout": None}], {"a": {"b": [1, {"c": None}]}}, "data:image/png;base64,AAAA", [{"name": "t"}, 7]),
]
KINDS = ["new", "new_call", "new_output", "compaction", "compaction_trigger", "item_reference", "reasoning", "message"]
KINDS += ["additional_tools", "mcp_list_tools", "tool_search_call", "tool_search_output", "program", "program_output"]
Change = Callable[[random.Random, list[Json]], None]


def some(chance: random.Random, items: list[Json]) -> Json:
    return chance.choice(items) if items else {}


def other_value(chance: random.Random, items: list[Json]) -> None:
    item = some(chance, items)
    item[chance.choice([*item, "type", "role", "content", "output", "call_id", "id", "tools"])] = chance.choice(ODD)


def other_type(chance: random.Random, items: list[Json]) -> None:
    some(chance, items)["type"] = chance.choice([*KINDS, *(str(item.get("type")) for item in HISTORY)])


def no_value(chance: random.Random, items: list[Json]) -> None:
    item = some(chance, items)
    if item:
        del item[chance.choice([*item])]


def other_id(chance: random.Random, items: list[Json]) -> None:
    some(chance, items)["call_id"] = chance.choice(["c1", "c2", "c3", "c4", "x" * 200, 7, None])


def gone(chance: random.Random, items: list[Json]) -> None:
    if items:
        items.pop(chance.randrange(len(items)))


def doubled(chance: random.Random, items: list[Json]) -> None:
    items.insert(chance.randrange(len(items) + 1), dict(some(chance, items)))


def moved(chance: random.Random, items: list[Json]) -> None:
    if items:
        items.insert(chance.randrange(len(items)), items.pop(chance.randrange(len(items))))


def deep(chance: random.Random, items: list[Json]) -> None:
    value: object = "x"
    for _ in range(chance.choice([5, 90, 300])):
        value = [value] if chance.random() < 0.5 else {"content": value}
    some(chance, items)[chance.choice(["content", "output", "action", "new"])] = value


def huge(chance: random.Random, items: list[Json]) -> None:
    some(chance, items)["output"] = [{"type": "input_text", "text": "x"}] * chance.choice([50, 12_000])


CHANGES: list[Change] = [other_value] * 6 + [other_type, no_value, other_id, gone, doubled, moved] * 3 + [deep]


def mutated(chance: random.Random) -> bytes:
    items: list[Json] = json.loads(json.dumps(HISTORY))
    for _ in range(chance.choice([1, 1, 2, 3, 8])):
        chance.choice([huge] if chance.random() < 0.002 else CHANGES)(chance, items)
    fields: Json = {"model": "gpt-5", "input": items, "tools": [], "stream": True}
    if chance.random() < 0.2:
        fields[chance.choice([*fields, "conversation", "context_management", "metadata"])] = chance.choice(ODD)
    body = json.dumps(fields, ensure_ascii=chance.random() < 0.9).encode("utf-8", "surrogatepass")
    match chance.randrange(40):
        case 0:
            return body.replace(b'"type"', b'"type": "user", "type"', 3)
        case 1:
            return body[:-1] + b', "input": []}'
        case 2:
            return body[: chance.randrange(len(body))]
        case 3:
            at = chance.randrange(len(body))
            return body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
        case _:
            return body


def read(reader: RequestReader, body: bytes) -> CountedRequest | None:
    return asyncio.run(reader.read(body, b"caller", lambda _: DEFAULT_ENCODING, RESPONSES))


def keeps_its_bytes(request: CountedRequest, cut: int, chance: random.Random) -> None:
    body, parsed, conversation = request.body, request.parsed, request.conversation
    items = assemble(conversation, cut, RECORD, chance.choice(["separate", "ack", "merge"]))
    rebuilt = request.dialect.rebuild(body, parsed, items, {})
    position = parsed.array[0]
    for item in items:
        if isinstance(item, Injected | MergedMessage | UserWords):
            continue
        first, last = parsed.spans[item]
        position = rebuilt.index(body[first:last], position) + last - first
    assert rebuilt[position:].endswith(body[parsed.array[1] :])
    assert rebuilt.startswith(body[: parsed.array[0]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_sent_is_read_or_relayed_and_never_changed(seed: int) -> None:
    chance = random.Random(seed)
    understood = cut = 0
    with ThreadPoolExecutor(1) as pool:
        reader = RequestReader(TOKENIZER, Workers(pool))
        for _ in range(1_000):
            try:
                request = read(reader, mutated(chance))
            except InvalidJSONError:
                continue
            if request is None:
                continue
            understood += 1
            conversation = request.conversation
            assert len(request.utterances(0, len(conversation.body))) >= 0
            for position in legal_cuts(conversation):
                keeps_its_bytes(request, position, chance)
                cut += 1
    assert (understood > 500, cut > 500) == (True, True)


@pytest.mark.parametrize("text", ["Go on.", "Go on \\ud83d."], ids=["plain", "half an emoji"])
@pytest.mark.parametrize("of_user", [lambda index: index, UserWords], ids=["merged", "words"])
def test_a_thought_that_nothing_followed_does_not_stand_between_a_record_and_a_users_words(
    text: str, of_user: Callable[[MessageIndex], MessageIndex | UserWords]
) -> None:
    said = b'{"role":"user","content":"%b"}' % text.encode()
    thought = b'{"type":"reasoning","summary":[]}'
    body = b'{"model":"m","input":[{"role":"user","content":"Hi."},%b, %b]}' % (thought, said)
    with ThreadPoolExecutor(1) as pool:
        request = read(RequestReader(TOKENIZER, Workers(pool)), body)
    assert request is not None
    assert len(request.messages) == 2
    item = MergedMessage(RECORD, of_user(MessageIndex(1)))
    rebuilt = request.dialect.rebuild(body, request.parsed, [item], {})
    assert rebuilt == b'{"model":"m","input":[%b]}' % request.dialect.items.merge(RECORD, said)


def captures() -> Iterator[Path]:
    """Requests of codex and of SDKs, where the reference data is present (CONCERTINA_REFERENCE names its folder)."""
    folder = Path(REFERENCE or "/nowhere")
    for client in ("codex*", "long_codex", "openai-agents", "openai-python-responses", "opencode*"):
        yield from sorted(folder.glob(f"captures/{client}/*v1_responses.json"))


@pytest.mark.skipif(REFERENCE is None, reason="the reference data is not there: set CONCERTINA_REFERENCE to its folder")
@pytest.mark.parametrize("file", list(captures()), ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_real_request_is_cut_without_harm_wherever_it_may_be_cut(file: Path) -> None:
    sent: Json = json.loads(file.read_text())["body"]
    with ThreadPoolExecutor(1) as pool:
        request = read(RequestReader(TOKENIZER, Workers(pool)), json.dumps(sent).encode())
    assert request is not None
    assert request.settings.passthrough is None
    items = sent["input"]
    assert isinstance(items, list)
    cuts = legal_cuts(request.conversation)
    for cut in cuts[:: max(1, len(cuts) // 20)]:
        rebuilt = request.dialect.rebuild(request.body, request.parsed, assemble(request.conversation, cut, RECORD), {})
        after: Json = json.loads(rebuilt)
        assert {**after, "input": items} == sent
        kept = after["input"]
        assert isinstance(kept, list)
        assert defects(after) == defects(sent) == []
        assert parted(items, kept) == []
        assert kept[-1] == items[-1]
