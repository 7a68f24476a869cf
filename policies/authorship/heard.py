"""Facts about the authors of a message, for the decisions."""

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from policies.authorship import wrappers
from policies.authorship.parts import Part, is_bare, parts_by_block, typed_in_result
from policies.authorship.speech import Speech, speech_of
from policies.authorship.text_calls import begins_as_result

_DIGITS = re.compile(r"\d+")
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_RUN = re.compile(rb"0+")
_PATTERN_BYTES = 8


class Heard(NamedTuple):
    """The facts about the authors of one message.

    speech:     of a person; `unsure` if only the conversation can show it.
    is_known:   True if its content shows a client that puts no unmarked text into the user role except a person's.
    opens:      the first of the unknown elements that make up the whole message; else empty.
    rules:      the files of rules in it. words, text_of_rules: the texts of a person and of those files.
    is_summary: True for the client's own summary of earlier messages.
    patterns:   digests of a person's texts, with digits masked. Empty if a text has only unknown elements, since it is
    then
                not unmarked.
    is_result:  True if it begins like the result of a tool call in text.
    """

    speech: Speech = "none"
    is_known: bool = False
    opens: str = ""
    rules: tuple[str, ...] = ()
    words: str = ""
    text_of_rules: str = ""
    is_summary: bool = False
    patterns: tuple[bytes, ...] = ()
    is_result: bool = False


def heard_in(blocks: Sequence[str]) -> Heard:
    """Return the facts about a message in the user role that consists of these texts."""
    if len(blocks) == 1 and is_bare(blocks[0]):  # most are, and splitting takes as long as counting tokens
        words = blocks[0].strip()
        return Heard(speech_of(words), words=words, patterns=(_pattern_of(words),), is_result=begins_as_result(words))
    by_block = parts_by_block(blocks)
    parts = [part for block_parts in by_block for part in block_parts]
    words = words_of(parts)
    rules = [part for part in parts if part.voice == "instructions"]
    unsure = next((part for part in parts if not part.is_sure), None)
    # An empty message can only be a person's.
    speech = speech_of(words) if any(map(str.strip, blocks)) else "brief"
    return Heard(
        speech if speech != "none" or unsure is None else "unsure",
        any(part.by in wrappers.KNOWN or _element_of(part) in wrappers.KNOWN for part in parts),
        _made_of(parts),
        tuple(part.by for part in rules),
        words,
        "\n".join(part.text for part in rules),
        any(part.voice == "summary" for part in parts),
        () if any(map(_made_of, by_block)) else _patterns_of(parts),
        begins_as_result(words),
    )


def heard_in_results(texts: Sequence[str]) -> Heard:
    """Return the facts about tool results with these texts, for any tools."""
    typed = [part for text in texts for part in typed_in_result(text, "") if part.voice == "person"]
    words = words_of(typed)
    return Heard(speech_of(words), words=words)


def introduces_itself(instructions: str) -> bool:
    """Return True if a system prompt is that of a known client."""
    return wrappers.INTRODUCTIONS.search(instructions[:600]) is not None


def words_of(parts: Sequence[Part]) -> str:
    """Return the text of a person in these parts."""
    return "\n".join(part.text.strip() for part in parts if part.voice == "person")


def _patterns_of(parts: Sequence[Part]) -> tuple[bytes, ...]:
    return tuple(_pattern_of(part.text) for part in parts if part.voice == "person")


def _pattern_of(text: str) -> bytes:
    """Return a digest that is equal for texts that differ only in digits and spaces."""
    joined = " ".join(text.split())
    if joined.isascii():  # nearly all are, and a pattern takes ten times as long
        masked = joined.encode().translate(_ZEROS)
        masked = _RUN.sub(b"0", masked) if b"00" in masked else masked
    else:
        masked = _DIGITS.sub("0", joined).encode("utf-8", "surrogatepass")
    return hashlib.sha256(masked).digest()[:_PATTERN_BYTES]


def _element_of(part: Part) -> str:
    """Return the element that makes up a file of rules; empty for any other part."""
    return part.text[1:].partition(">")[0] if part.voice == "instructions" and part.text.startswith("<") else ""


def _made_of(parts: Sequence[Part]) -> str:
    is_made = all(part.voice == "person" and part.by and part.by not in wrappers.TYPED for part in parts)
    return parts[0].by if parts and is_made else ""
