"""Functions on texts and ids that are the same for all dialects."""

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from policies.authorship.arguments import UnreadError, read
from policies.authorship.heard import Heard, heard_in, heard_in_results, introduces_itself, words_of
from policies.authorship.parts import parts_of, typed_in_result
from policies.authorship.text_calls import ends_with_call
from policies.authorship.wrappers import Voice
from policies.conversation.message import Message
from policies.conversation.timestamps import harness_spans
from policies.conversation.transcript import CountTokens, shorten
from proxy.dialects.json_array import members_of
from proxy.dialects.surrogates import readable

_LONGEST_ID = 128
_SHORTEST = 40


def id_of(value: object) -> str:
    """Return an id, or the hash of a long one (some hold a whole signature). Ids are only compared and remembered."""
    text = str(value)
    return text if len(text) <= _LONGEST_ID else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def cut(text: str, share: float) -> str:
    """Return the text with this share of its length, head and tail, visibly marked."""
    return shorten(text, max(_SHORTEST, int(len(text) * share)))


def with_voices(message: Message, texts: Sequence[str], count: CountTokens, *, has_media: bool = False) -> Message:
    """Return the description of an item with these texts, with the texts' authors."""
    if message.role == "user":
        return with_heard(message, heard_in(texts), count, has_media=has_media)
    if message.role == "tool":
        typed = heard_in_results(texts)
        if not typed.words:
            return message
        return msgspec.structs.replace(message, words=count(typed.words), speech=typed.speech, is_typed=True)
    if message.role == "assistant":
        return with_text_call(message, texts)
    if not introduces_itself("".join(texts[:1])):
        return message
    return msgspec.structs.replace(message, is_known=True)


def with_heard(message: Message, heard: Heard, count: CountTokens, *, has_media: bool = False) -> Message:
    """Return the description of a user's message with its authors."""
    return msgspec.structs.replace(
        message,
        speech="full" if has_media and heard.speech in ("none", "brief") else heard.speech,
        is_known=heard.is_known,
        opens=heard.opens,
        rules=heard.rules,
        rule_tokens=count(heard.text_of_rules) if heard.rules else 0,
        is_summary=heard.is_summary,
        patterns=heard.patterns,
        text_tool="result" if heard.is_result else "",
    )


def with_text_call(message: Message, texts: Sequence[str]) -> Message:
    """Return the description of an assistant's message, marked if its texts end with a tool call."""
    if message.calls or not texts or not ends_with_call(texts[-1]):
        return message
    return msgspec.structs.replace(message, text_tool="call")


def texts_of_voice(texts: Sequence[str], voice: Voice, *, is_result: bool) -> str:
    """Return the text of this voice in an item with these texts."""
    parts = [part for text in texts for part in typed_in_result(text, "")] if is_result else parts_of(texts)
    return words_of(parts) if voice == "person" else "\n".join(part.text for part in parts if part.voice == voice)


def shorten_harness_texts(raw: bytes | memoryview, share: float) -> bytes:
    """Return an item in which a harness's texts in a user's name keep this share of their length. Tags stay."""
    item = msgspec.json.decode(readable(bytes(raw)))
    content = item.get("content")
    if isinstance(content, str):
        item["content"] = _less_harness(content, share)
    elif isinstance(content, list):
        item["content"] = [_part_with_less(part, share) for part in content]
    return msgspec.json.encode(item)


def _part_with_less(part: object, share: float) -> object:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return {**part, "text": _less_harness(part["text"], share)}
    return part


def _less_harness(text: str, share: float) -> str:
    pieces, position = [], 0
    for start, end in harness_spans(text):
        pieces += [text[position:start], cut(text[start:end], share)]
        position = end
    return "".join([*pieces, text[position:]])


def cut_values(arguments: object, share: float) -> object:
    """Return the arguments of a call with their texts shortened. A value that is not an object stays unchanged."""
    if not isinstance(arguments, dict):
        return arguments
    return {key: cut(value, share) if isinstance(value, str) else value for key, value in arguments.items()}


def cut_arguments(arguments: str, share: float) -> str:
    """Return the arguments' text with its texts shortened. JSON stays JSON."""
    try:
        decoded = read(arguments)
    except UnreadError:
        return arguments
    return msgspec.json.encode(cut_values(decoded, share)).decode() if isinstance(decoded, dict) else arguments


def with_beginning(raw: bytes | memoryview, text: str, part: Mapping[str, object]) -> bytes:
    """Return an item whose content begins with an injected text, as a part if it is a list.

    Its other fields and its own content keep their bytes.
    """
    members = members_of(bytes(raw))
    name, _, content = members.get("content", b'"content":null').partition(b":")
    content = content.strip()
    match content[:1]:
        case b'"':
            new_content = msgspec.json.encode(f"{text}\n\n")[:-1] + content[1:]
        case b"[":
            first_part = msgspec.json.encode(part)
            new_content = b"[" + first_part + (b"]" if content[1:].strip() == b"]" else b"," + content[1:])
        case _:
            new_content = msgspec.json.encode(text)
    return b"{" + b",".join({**members, "content": name + b":" + new_content}.values()) + b"}"


# Keys without content in the events of any dialect: roles, types, and numbers.
_METADATA_KEYS = frozenset(
    {"type", "role", "id", "index", "object", "model", "name", "usage", "item_id", "output_index"}
)
# Keys under which servers of all kinds put content.
_CONTENT_KEYS = (
    *("delta", "text", "content", "output", "choices", "candidates", "message", "response", "token", "completion"),
    *("generated_text", "reasoning", "reasoning_content", "tool_calls", "refusal", "arguments"),
)


def has_any_content(event: bytes) -> bool:
    """Return True if an event of no known dialect has content or an error. An unreadable event may have any."""
    try:
        fields = msgspec.json.decode(event)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return True
    if not isinstance(fields, dict) or not fields or fields.get("error"):
        return True
    # A string under `message` is a note or an error. No server puts content there.
    return any(
        _has_text_value(fields.get(key))
        for key in _CONTENT_KEYS
        if not (key == "message" and isinstance(fields.get(key), str))
    )


def _has_text_value(value: object) -> bool:
    if isinstance(value, dict):
        is_call = isinstance(value.get("arguments"), str)
        return is_call or any(_has_text_value(inner) for key, inner in value.items() if key not in _METADATA_KEYS)
    return any(map(_has_text_value, value)) if isinstance(value, list) else isinstance(value, str) and bool(value)


def printable(text: str, most: int) -> str:
    """Return a text in a form that headers and logs may hold, at most `most` characters."""
    text = text[:most]
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
