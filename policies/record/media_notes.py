"""What stands in the place of a picture or paper that is left out, in the language of the conversation.

A function of what stands before it: the same from every replica, and the same for as long as it is gone.
"""

from dataclasses import dataclass

from policies.record.texts import Language, MediaTexts, texts_for

_MB = 1_000_000
# From so many bytes on a size is told in MB.
_LARGE = _MB // 20


@dataclass(frozen=True, slots=True)
class NotedMedium:
    """What a note says of one. number: among all of its conversation, from 1. what: its form and sides, if known.
    size: in bytes, 0 for one that is only named. tool: whose result it is; None if that is not known."""

    kind: str
    number: int
    what: str
    size: int
    is_of_tool: bool
    tool: str | None = None


def note_of(medium: NotedMedium, language: Language) -> str:
    """Return the text that stands in the place of a medium."""
    texts = texts_for(language).media
    size = f"{medium.size / _MB:.1f} MB" if medium.size >= _LARGE else f"{max(1, medium.size // 1_000)} kB"
    whose = _whose(medium, texts)
    if medium.is_of_tool:
        whose = (texts.again if medium.tool else texts.ask_again).format(whose=whose)
    facts = texts.comma.join(filter(None, [medium.what, size if medium.size else "", whose]))
    kind = texts.kinds.get(medium.kind, medium.kind)
    return texts.left_out.format(kind=kind, number=medium.number, facts=facts)


def _whose(medium: NotedMedium, texts: MediaTexts) -> str:
    if not medium.is_of_tool:
        return texts.users
    return texts.result_of.format(tool=medium.tool) if medium.tool else texts.result
