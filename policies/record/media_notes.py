"""What stands in the place of a picture or paper that is left out, in the language of the conversation.

A function of what stands before it: the same from every replica, and the same for as long as it is gone.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from policies.record.texts import Language

_MB = 1_000_000
# From so many bytes on a size is told in MB.
_LARGE = _MB // 20
_ORDINALS = {1: "st", 2: "nd", 3: "rd"}
# Of what a provider says.
_LONGEST = 200

# Where its place in the request is named: a position in what we have sent means nothing to those who read a note.
_PLACE = re.compile(r"\b(?:messages|input|contents)(?:\.\w+|\[\w*\])+:?\s*")
_MARKUP = re.compile(r"<[/!a-zA-Z][^<>]{0,200}>")
_SPACES = re.compile(r"\s+")
# A full stop inside of a name or a number ends nothing.
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|[\r\n]+|(?<=[。！？；])")
# What would end a note, or a quotation in it.
_SIGNS = str.maketrans({'"': "'", "“": "'", "”": "'", "[": "(", "]": ")"})


@dataclass(frozen=True, slots=True)
class _NoteTexts:
    """Of a note in one language. kinds: of media; another kind is called what the client calls it."""

    left_out: str
    refused: str
    refused_saying: str
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
        refused="[{kind} refused by the provider: {facts}]",
        refused_saying='[{kind} refused by the provider: "{words}"; {facts}]',
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
        refused="[服务商拒收{kind}：{facts}]",
        refused_saying='[服务商拒收{kind}："{words}"；{facts}]',
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
        refused="[プロバイダーが{kind}を拒否しました：{facts}]",
        refused_saying='[プロバイダーが{kind}を拒否しました："{words}"、{facts}]',
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


def note_of(medium: NotedMedium, language: Language, refusal: str | None = None) -> str:
    """What stands in its place; `refusal`: what its provider has said of it (`quotable`), None if it was not refused
    by itself, empty if nothing is known of that."""
    texts = _TEXTS[language]
    size = f"{medium.size / _MB:.1f} MB" if medium.size >= _LARGE else f"{max(1, medium.size // 1_000)} kB"
    whose = _whose(medium, texts)
    if refusal is None and medium.is_of_tool:
        whose = (texts.again if medium.tool else texts.ask_again).format(whose=whose)
    facts = texts.comma.join(filter(None, [medium.what, size if medium.size else "", whose]))
    kind = texts.kinds.get(medium.kind, medium.kind)
    if refusal is None:
        return texts.left_out.format(kind=kind, ordinal=texts.ordinal(medium.number), facts=facts)
    saying = texts.refused_saying if refusal else texts.refused
    return saying.format(kind=kind, words=refusal, facts=facts)


def _whose(medium: NotedMedium, texts: _NoteTexts) -> str:
    if not medium.is_of_tool:
        return texts.users
    return texts.result_of.format(tool=medium.tool) if medium.tool else texts.result


def quotable(text: str, is_meant: Callable[[str], bool] = lambda _: True) -> str:
    """The sentence of an error that is meant, else its first, fit to be quoted in a note: on one line, of at most 200
    characters, without a place in the request, and without what would end the quotation."""
    sentences = [sentence for sentence in _SENTENCE_END.split(text[: 20 * _LONGEST]) if sentence.strip()]
    sentence = next(filter(is_meant, sentences), sentences[0] if sentences else "")
    sentence = "".join(" " if _is_unseen(sign) else sign for sign in _PLACE.sub("", _MARKUP.sub(" ", sentence)))
    plain = _SPACES.sub(" ", sentence.translate(_SIGNS)).strip()
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 1].rstrip()}…"


def _is_unseen(sign: str) -> bool:
    """Whether it moves, hides or turns what stands around it."""
    return unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
