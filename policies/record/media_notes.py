"""The note in the place of a medium that is left out, in the language of the conversation.

It depends only on earlier messages, so every replica and every request gets the same text.
"""

from dataclasses import dataclass

from policies.record.texts import Language, MediaTexts, texts_for

_MB = 1_000_000
# From this many bytes on, a size is given in MB.
_LARGE = _MB // 20


@dataclass(frozen=True, slots=True)
class NotedMedium:
    """The facts in the note on one medium.

    number: among all media of its conversation, from 1.
    what: its format and dimensions, if known.
    size: in bytes; 0 if the request contains only a reference.
    tool: the tool that returned it; None if unknown.
    """

    kind: str
    number: int
    what: str
    size: int
    is_of_tool: bool
    tool: str | None = None


def note_of(medium: NotedMedium, language: Language) -> str:
    """Return the note in the place of a medium."""
    texts = texts_for(language).media
    size = f"{medium.size / _MB:.1f} MB" if medium.size >= _LARGE else f"{max(1, medium.size // 1_000)} kB"
    origin = _origin(medium, texts)
    if medium.is_of_tool:
        origin = (texts.again if medium.tool else texts.ask_again).format(whose=origin)
    facts = texts.comma.join(filter(None, [medium.what, size if medium.size else "", origin]))
    kind = texts.kinds.get(medium.kind, medium.kind)
    return texts.left_out.format(kind=kind, number=medium.number, facts=facts)


def _origin(medium: NotedMedium, texts: MediaTexts) -> str:
    if not medium.is_of_tool:
        return texts.users
    return texts.result_of.format(tool=medium.tool) if medium.tool else texts.result
