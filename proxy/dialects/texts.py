"""What every dialect does alike with the texts of an item and with ids."""

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
    """An id, or the hash of a long one (some carry a whole signature): ids are compared only, and remembered."""
    text = str(value)
    return text if len(text) <= _LONGEST_ID else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def cut(text: str, share: float) -> str:
    """The text with this share of its length, head and tail, visibly marked."""
    return shorten(text, max(_SHORTEST, int(len(text) * share)))


def with_voices(message: Message, texts: Sequence[str], count: CountTokens, *, has_media: bool = False) -> Message:
    """The message of an item with these texts, with whose words they are."""
    if message.role == "user":
        return as_heard(message, heard_in(texts), count, has_media=has_media)
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


def as_heard(message: Message, heard: Heard, count: CountTokens, *, has_media: bool = False) -> Message:
    """The message of a user with what was heard in it."""
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
    """Return the message of an assistant with whether its texts end with a tool call."""
    if message.calls or not texts or not ends_with_call(texts[-1]):
        return message
    return msgspec.structs.replace(message, text_tool="call")


def texts_of_voice(texts: Sequence[str], voice: Voice, *, is_result: bool) -> str:
    """What is said in this voice, in an item with these texts."""
    parts = [part for text in texts for part in typed_in_result(text, "")] if is_result else parts_of(texts)
    return words_of(parts) if voice == "person" else "\n".join(part.text for part in parts if part.voice == voice)


def with_less_harness(raw: bytes | memoryview, share: float) -> bytes:
    """An item in which what a harness says in a user's name keeps this share of its length, between its tags."""
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
    kept, at = [], 0
    for start, end in harness_spans(text):
        kept += [text[at:start], cut(text[start:end], share)]
        at = end
    return "".join([*kept, text[at:]])


def cut_values(arguments: object, share: float) -> object:
    """Arguments of a call, the texts among them cut; what is no object stays as it is."""
    if not isinstance(arguments, dict):
        return arguments
    return {key: cut(value, share) if isinstance(value, str) else value for key, value in arguments.items()}


def cut_arguments(arguments: str, share: float) -> str:
    """The same of their text, which stays JSON if it is."""
    try:
        decoded = read(arguments)
    except UnreadError:
        return arguments
    return msgspec.json.encode(cut_values(decoded, share)).decode() if isinstance(decoded, dict) else arguments


def with_beginning(raw: bytes | memoryview, text: str, part: Mapping[str, object]) -> bytes:
    """An item whose content begins with a text of ours, as a part where it is a list; its other fields, and what it
    said, keep their bytes."""
    members = members_of(bytes(raw))
    name, _, content = members.get("content", b'"content":null').partition(b":")
    content = content.strip()
    match content[:1]:
        case b'"':
            begun = msgspec.json.encode(f"{text}\n\n")[:-1] + content[1:]
        case b"[":
            first = msgspec.json.encode(part)
            begun = b"[" + first + (b"]" if content[1:].strip() == b"]" else b"," + content[1:])
        case _:
            begun = msgspec.json.encode(text)
    return b"{" + b",".join({**members, "content": name + b":" + begun}.values()) + b"}"


# Where no event of any dialect says anything: who speaks, what it is, and numbers beside it.
_BESIDE = frozenset({"type", "role", "id", "index", "object", "model", "name", "usage", "item_id", "output_index"})
# Where servers of all kinds put what is said.
_SAYING = (
    *("delta", "text", "content", "output", "choices", "candidates", "message", "response", "token", "completion"),
    *("generated_text", "reasoning", "reasoning_content", "tool_calls", "refusal", "arguments"),
)


def speaks(event: bytes) -> bool:
    """Whether an event that no dialect knows carries any content, or an error; what cannot be read may be anything."""
    try:
        fields = msgspec.json.decode(event)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return True
    if not isinstance(fields, dict) or not fields or fields.get("error"):
        return True
    # A sentence under `message` is a note, or an error: no server answers there.
    return any(_says(fields.get(key)) for key in _SAYING if not (key == "message" and isinstance(fields.get(key), str)))


def _says(value: object) -> bool:
    if isinstance(value, dict):
        is_call = isinstance(value.get("arguments"), str)
        return is_call or any(_says(inner) for key, inner in value.items() if key not in _BESIDE)
    return any(map(_says, value)) if isinstance(value, list) else isinstance(value, str) and bool(value)


def printable(text: str, most: int) -> str:
    """As much of a text as may stand in headers and logs."""
    text = text[:most]
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
