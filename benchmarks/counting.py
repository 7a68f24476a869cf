"""`python -m benchmarks.counting`: how far our counts are from real ones, in percent; more is on the safe side.

Against OpenAI's cookbook formula everywhere; against a real llama.cpp server and its small model where CONCERTINA_REAL
names their folder (`make test-real` makes one); on real conversations where CONCERTINA_REFERENCE names their folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import tiktoken
from rich.console import Console
from rich.table import Table

from proxy.dialects.reader import RequestReader
from proxy.dialects.table import CHAT
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.runtime import workers as threads
from tests.real.gguf import write_tokenizer
from tests.real.llama import MISSING, Llama, llama, model_file
from tests.real.texts import TEXTS

Json = Mapping[str, object]

_TOKENIZER = Tokenizer()
_ENCODINGS = (DEFAULT_ENCODING, "cl100k_base", "claude")

# How Qwen 2.5 and Hermes show tools and calls to their models; SmolLM's own template leaves both out.
_TEMPLATE = """\
{%- if tools %}<|im_start|>system
You are a helpful assistant.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{%- if message.content %}
{{ message.content }}
{%- endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.replace('_', ' ').capitalize()} in the workspace, and return what came of it.",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": f"The {key} to use."} for key in keys},
                "required": keys[:1],
            },
        },
    }
    for name, keys in (
        ("read_file", ["path", "offset"]),
        ("write_file", ["path", "text"]),
        ("run_command", ["command", "directory", "timeout"]),
        ("search", ["pattern", "path"]),
    )
]


def _called(number: int, result: str) -> list[Json]:
    function = {"name": "read_file", "arguments": json.dumps({"path": f"src/module_{number}.py", "offset": number})}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
    ]


_TALK: list[Json] = [
    message
    for i in range(30)
    for message in (
        {"role": "user", "content": f"And what of item {i}?"},
        {"role": "assistant", "content": f"Item {i} is in stock."},
    )
]
_RESULT = TEXTS["code"][:1_200]
_CHATS: Mapping[str, Json] = {
    **{f"one message of {name}": {"messages": [{"role": "user", "content": text}]} for name, text in TEXTS.items()},
    "60 short messages": {"messages": _TALK},
    "20 tool calls": {"messages": [_TALK[0], *(m for i in range(20) for m in _called(i, _RESULT))]},
    "20 tool calls, short results": {"messages": [_TALK[0], *(m for i in range(20) for m in _called(i, "ok"))]},
    "4 tools": {"messages": _TALK[:1], "tools": _TOOLS},
}


def main() -> None:
    """Print every table that can be made here."""
    console = Console()
    console.print(_by_formula())
    model = model_file()
    if model is None:
        console.print(f"no real server: {MISSING}")
        return
    with tempfile.TemporaryDirectory() as folder, llama(4096, _TEMPLATE) as server:
        own = Path(folder) / "tokenizer.json"
        write_tokenizer(model, own)
        console.print(_by_text(server, str(own)), _by_chat(server, str(own)))


def _by_formula() -> Table:
    table = _table("Requests, by OpenAI's formula", "real", "counted", "error")
    for name, chat in [*_CHATS.items(), *_conversations()]:
        real = _formula(chat)
        counted = _counted(chat, DEFAULT_ENCODING)
        table.add_row(name, f"{real:,}", f"{counted:,}", _error(counted, real))
    return table


def _by_text(server: Llama, own: str) -> Table:
    table = _table("Texts, by llama.cpp's /tokenize (SmolLM2)", "real", *_ENCODINGS, "its tokenizer.json")
    for name, text in TEXTS.items():
        real = server.tokens(text)
        errors = (_error(_TOKENIZER.count(text, encoding), real) for encoding in (*_ENCODINGS, own))
        table.add_row(name, f"{real:,}", *errors)
    return table


def _by_chat(server: Llama, own: str) -> Table:
    table = _table("Requests, by llama.cpp with a template of tools", "real", DEFAULT_ENCODING, "its tokenizer.json")
    for name, chat in _CHATS.items():
        real = server.prompt_tokens(**chat)
        table.add_row(name, f"{real:,}", *(_error(_counted(chat, it), real) for it in (DEFAULT_ENCODING, own)))
    return table


def _counted(chat: Json, encoding: str) -> int:
    async def count() -> int:
        with ThreadPoolExecutor(1) as workers:
            body = json.dumps({"model": "gpt-4o", **chat}, separators=(",", ":"), ensure_ascii=False).encode()
            request = await RequestReader(_TOKENIZER, threads.Workers(workers)).read(
                body, b"", lambda _: encoding, CHAT
            )
            return request.tokens if request else 0

    return asyncio.run(count())


def _formula(chat: Json) -> int:
    """https://cookbook.openai.com/examples/how_to_count_tokens_with_tiktoken, for gpt-4o.

    Calls are not in it: taken as their name and arguments and 3 tokens around them.
    """
    total = 3
    for message in _objects(chat["messages"]):
        texts = [message.get("role"), message.get("content"), message.get("name")]
        functions = [_object(call["function"]) for call in _objects(message.get("tool_calls"))]
        texts += [text for function in functions for text in (function["name"], function["arguments"])]
        total += 3 + bool(message.get("name")) + 3 * len(functions) + sum(_tokens(text) for text in texts)
    functions = [_object(tool["function"]) for tool in _objects(chat.get("tools"))]
    return total + sum(map(_definition, functions)) + 12 * bool(functions)


def _definition(function: Json) -> int:
    total = 7 + _tokens(f"{function['name']}:{str(function.get('description', '')).rstrip('.')}")
    properties = _object(_object(function.get("parameters")).get("properties"))
    total += 3 * bool(properties)
    for key, value in properties.items():
        fields = _object(value)
        options = [option for option in _sequence(fields.get("enum")) if isinstance(option, str)]
        total += 3 + sum(3 + _tokens(option) for option in options) - 3 * bool(options)
        total += _tokens(f"{key}:{fields.get('type')}:{str(fields.get('description', '')).rstrip('.')}")
    return total


def _conversations() -> Iterator[tuple[str, Json]]:
    """Real ones, and the first and last request of real clients."""
    folder = os.environ.get("CONCERTINA_REFERENCE")
    if folder is None:
        return
    root = Path(folder) / "captures"
    for file in sorted(root.glob("data/*.json")):
        yield file.stem, json.loads(file.read_text())
    for client in sorted(root.glob("long_*")):
        for file in sorted(client.glob("*chat_completions.json"))[-1:]:
            with suppress(KeyError):
                body = json.loads(file.read_text())["body"]
                yield f"{client.name}, last request", {key: body[key] for key in ("messages", "tools") if key in body}


@lru_cache
def _encoding() -> tiktoken.Encoding:
    _TOKENIZER.warm(DEFAULT_ENCODING)  # which names the folder of the files
    return tiktoken.get_encoding(DEFAULT_ENCODING)


def _tokens(value: object) -> int:
    if isinstance(value, list):
        return sum(_tokens(part.get("text")) for part in value if isinstance(part, dict))
    return len(_encoding().encode_ordinary(value)) if isinstance(value, str) else 0


def _object(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def _objects(value: object) -> Iterator[Json]:
    return (item for item in _sequence(value) if isinstance(item, Mapping))


def _error(counted: int, real: int) -> str:
    return f"{100 * (counted / real - 1):+.1f} %"


def _table(title: str, *columns: str) -> Table:
    table = Table("", title=title)
    for column in columns:
        table.add_column(column, justify="right")
    return table


if __name__ == "__main__":
    main()
