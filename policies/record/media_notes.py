"""What stands in the place of a picture or paper that is left out, in the language of the conversation.

A function of what stands before it: the same from every replica, and the same for as long as it is gone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from policies.record.texts import Language

_MB = 1_000_000
# From so many bytes on a size is told in MB.
_LARGE = _MB // 20
_ORDINALS = {1: "st", 2: "nd", 3: "rd"}


@dataclass(frozen=True, slots=True)
class _NoteTexts:
    """Of a note in one language. kinds: of media; another kind is called what the client calls it."""

    left_out: str
    comma: str
    result_of: str
    result: str
    again: str
    ask_again: str
    users: str
    ordinal: Callable[[int], str]
    kinds: Mapping[str, str]


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else _ORDINALS.get(number % 10, "th")
    return f"{number}{suffix}"


_TEXTS: Mapping[Language, _NoteTexts] = {
    "en": _NoteTexts(
        left_out="[{kind} left out by the gateway: the {ordinal} of this conversation, {facts}]",
        comma=", ",
        result_of="result of {tool}",
        result="of a result",
        again="{whose}; call it again if you need it",
        ask_again="{whose}; ask for it again if you need it",
        users="sent by the user",
        ordinal=_ordinal,
        kinds={},
    ),
    "zh": _NoteTexts(
        left_out="[网关已略去{kind}：本次对话的第 {ordinal} 个，{facts}]",
        comma="，",
        result_of="{tool} 的结果",
        result="工具的结果",
        again="{whose}；如有需要，请重新调用",
        ask_again="{whose}；如有需要，请重新获取",
        users="用户发送",
        ordinal=str,
        kinds={"image": "图片", "document": "文档", "audio": "音频", "video": "视频"},
    ),
    "ja": _NoteTexts(
        left_out="[ゲートウェイが{kind}を省きました：この会話の {ordinal} 番目、{facts}]",
        comma="、",
        result_of="{tool} の結果",
        result="ツールの結果",
        again="{whose}。必要ならもう一度呼び出してください",
        ask_again="{whose}。必要ならもう一度取得してください",
        users="ユーザーが送信",
        ordinal=str,
        kinds={"image": "画像", "document": "文書", "audio": "音声", "video": "動画"},
    ),
}


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
    texts = _TEXTS[language]
    size = f"{medium.size / _MB:.1f} MB" if medium.size >= _LARGE else f"{max(1, medium.size // 1_000)} kB"
    whose = _whose(medium, texts)
    if medium.is_of_tool:
        whose = (texts.again if medium.tool else texts.ask_again).format(whose=whose)
    facts = texts.comma.join(filter(None, [medium.what, size if medium.size else "", whose]))
    kind = texts.kinds.get(medium.kind, medium.kind)
    return texts.left_out.format(kind=kind, ordinal=texts.ordinal(medium.number), facts=facts)


def _whose(medium: NotedMedium, texts: _NoteTexts) -> str:
    if not medium.is_of_tool:
        return texts.users
    return texts.result_of.format(tool=medium.tool) if medium.tool else texts.result
