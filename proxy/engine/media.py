"""Carrying out what `policies/media.py` decides: pictures and papers that give way to a note."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from policies import media as policy
from policies.conversation import MessageIndex
from policies.media import MediaLimits, MediaOutline, Medium
from proxy.dialects import json_array
from proxy.dialects.media_parts import MediaPart, parts_of, without_parts
from proxy.dialects.surrogates import readable
from proxy.engine.case import CompactionContext
from proxy.engine.cooler import Cooler
from proxy.engine.draft import Draft
from proxy.engine.prompt_view import PromptView, Step
from proxy.memory import Cache
from proxy.overflow.media_refusals import MediaRefusal
from proxy.runtime.workers import Workers

_PART_BYTES = 300
_MOST_KEPT = 64 * 1024
# A message's digest, the tokenizer, and its notes by the number of a medium.
_NotesKey = tuple[bytes, str, tuple[tuple[int, str], ...]]
# Of what a request weighs that was refused, what its media weigh at least to be the reason.
_HALF = 0.5
# What is aimed at after one refusal and two: shares of the limit, or of what was refused.
_TARGETS = (0.5, 0.25)
_LAST = 2
MOST_SHED = 3
"""Sends after the first."""
_MB = 1_000_000
_ORDINALS = {1: "st", 2: "nd", 3: "rd"}


@dataclass(frozen=True, slots=True)
class FoundMedia:
    """Those of a conversation, in their order, each with what an item says of it."""

    all: list[Medium]
    parts: Mapping[Medium, MediaPart]
    outline: MediaOutline

    def left(self, view: PromptView, covered: int) -> list[Medium]:
        """Those that are sent behind a record of so many messages."""
        return [medium for medium in self.all if medium.position >= covered and medium.place not in view.left_out]


@dataclass(eq=False, repr=False)
class MediaAger:
    """Leaves media out; one per process."""

    _cooler: Cooler
    _workers: Workers
    _known: Cache[bytes, tuple[MediaPart, ...]]
    _rewritten: Cache[_NotesKey, tuple[bytes, int]]

    async def aged(self, case: CompactionContext, view: PromptView) -> PromptView:
        """The conversation without what its upstream has no room for, as far as that is known; the same view where it
        has room for all."""
        limits = case.media_limits
        if not (limits.is_any or case.experience.refused_media) or not case.request.history.has_media:
            return view
        return await self._workers.run(self._aged, case, view, limits)

    def _aged(self, case: CompactionContext, view: PromptView, limits: MediaLimits) -> PromptView:
        media = self.of(case, view)
        return self._without(case, view, media, policy.aged(media.all, media.outline, limits))

    async def shed(
        self,
        case: CompactionContext,
        view: PromptView,
        refusal: MediaRefusal,
        *,
        covered: int,
        sent: int,
        attempt: int,
    ) -> PromptView | None:
        """The conversation with fewer media than was refused, of `sent` bytes; None if they are not the reason, or none
        may go. attempt: how often that was done for this request."""
        return await self._workers.run(self._shed, case, view, refusal, covered, sent, attempt)

    def _shed(
        self, case: CompactionContext, view: PromptView, refusal: MediaRefusal, covered: int, sent: int, attempt: int
    ) -> PromptView | None:
        media = self.of(case, view)
        left = media.left(view, covered)
        if refusal.what == "one":
            gone = {medium for medium in left if medium.is_refused and not _is_of_user_now(media.outline, medium)}
            return self._without(case, view, media, gone) if gone else None
        size = sum(medium.size for medium in left)
        is_bytes = refusal.what == "bytes"
        if not left or ((is_bytes or not refusal.is_certain) and size < _HALF * sent):
            return None
        limit = refusal.limit if refusal.what in ("bytes", "pictures") else None
        there = sent if is_bytes else len(left)
        limit = min(limit or there, there)
        share = _TARGETS[attempt] if attempt < _LAST else 0.0
        most = MediaLimits(int(share * limit)) if is_bytes else MediaLimits(pictures=int(share * limit))
        outline = media.outline._replace(sizes=[0] * covered + [*media.outline.sizes[covered:]])
        gone = policy.shed(left, outline, most, hot_too=attempt >= _LAST) or policy.shed(
            left, outline, most, hot_too=True
        )
        return self._without(case, view, media, gone) if gone else None

    async def refused_one(
        self, case: CompactionContext, view: PromptView, refusal: MediaRefusal, covered: int
    ) -> str | None:
        """The digest of the medium that a provider refuses by itself: of the item that it names, else the largest."""
        return await self._workers.run(self._refused_one, case, view, refusal, covered)

    def _refused_one(
        self, case: CompactionContext, view: PromptView, refusal: MediaRefusal, covered: int
    ) -> str | None:
        media = self.of(case, view)
        left = media.left(view, covered)
        if refusal.at is not None and not covered:
            left = [one for one in left if case.conversation.index(one.position) == refusal.at] or left
        largest = max(left, key=lambda medium: medium.size, default=None)
        return None if largest is None else media.parts[largest].digest.hex()

    def of(self, case: CompactionContext, view: PromptView) -> FoundMedia:
        """The media of a conversation; each message is looked into once."""
        conversation, request = case.conversation, case.request
        found: list[Medium] = []
        parts: dict[Medium, MediaPart] = {}
        refused = {*case.experience.refused_media}
        for position, message in enumerate(conversation.body):
            if not message.media:
                continue
            for number, part in enumerate(self._parts(case, position)):
                is_of_tool = part.is_of_result or message.role == "tool"
                is_refused = part.digest.hex() in refused
                medium = Medium(position, number, part.size, is_of_tool, is_refused)
                found.append(medium)
                parts[medium] = part
        sizes = [len(request.message_bytes(conversation.index(at))) for at in range(len(conversation.body))]
        for index, raw in view.replaced.items():
            if (at := index - conversation.head_length) >= 0:
                sizes[at] = min(sizes[at], len(raw))
        return FoundMedia(found, parts, _outline(case, sizes))

    def _parts(self, case: CompactionContext, position: int) -> tuple[MediaPart, ...]:
        message = case.conversation.body[position]
        known = self._known.get(message.digest)
        if known is not None:
            return known
        raw = case.request.readable_bytes(case.conversation.index(position))
        items = (json_array.decode(item) for item in json_array.split_items(raw))
        found = tuple(part for item in items for part in parts_of(item))
        return self._known.keep(message.digest, found, _PART_BYTES * (1 + len(found)))

    def _without(
        self, case: CompactionContext, view: PromptView, media: FoundMedia, gone: Collection[Medium]
    ) -> PromptView:
        """The view with a note in the place of these, unless there is one."""
        of_messages: dict[int, list[tuple[int, Medium]]] = {}
        for number, medium in enumerate(media.all, 1):
            if medium.place not in view.left_out:
                of_messages.setdefault(medium.position, []).append((number, medium))
        others: dict[MessageIndex, tuple[bytes, int]] = {}
        for position in sorted({medium.position for medium in gone}):
            there = of_messages.get(position, [])
            notes = {
                at: _note(case, medium, media.parts[medium], number)
                for at, (number, medium) in enumerate(there)
                if medium in gone
            }
            if notes:
                index = case.conversation.index(position)
                others[index] = self._noted(case, index, view.replaced.get(index), notes)
        rewritten = view.rewritten(Step.MEDIA, others) if others else view
        return replace(rewritten, media=media.all, left_out=view.left_out | {medium.place for medium in gone})

    def _noted(
        self, case: CompactionContext, index: MessageIndex, changed: bytes | None, notes: Mapping[int, str]
    ) -> tuple[bytes, int]:
        """A message with these notes, and its tokens. What is small then, as the client sent it, is made once."""
        key = case.conversation.messages[index].digest, case.request.encoding, tuple(sorted(notes.items()))
        if changed is None and (known := self._rewritten.get(key)) is not None:
            return known
        raw = changed if changed is not None else bytes(case.request.message_bytes(index))
        other = _with_notes(raw, notes, case.request.dialect.text_kind)
        made = other, self._cooler.tokens(case, other)
        if changed is None and len(other) <= _MOST_KEPT:
            self._rewritten.keep(key, made, len(other) + _PART_BYTES * len(notes))
        return made


def _is_of_user_now(outline: MediaOutline, medium: Medium) -> bool:
    """Whether it belongs to what the user has said last."""
    return not medium.is_of_tool and medium.position >= (outline.users[-1] if outline.users else 0)


def _with_notes(raw: bytes, notes: Mapping[int, str], kind: str) -> bytes:
    """A message of one item or of several, whose media are numbered through."""
    changed, before = [], 0
    for item in json_array.split_items(raw):
        there = len(parts_of(json_array.decode(readable(item))))
        own = {number - before: note for number, note in notes.items() if before <= number < before + there}
        changed.append(without_parts(item, own, kind) if own else item)
        before += there
    return b",".join(changed)


def _note(case: CompactionContext, medium: Medium, part: MediaPart, number: int) -> str:
    """What stands in its place: which it was, what, and how to have it again; the same for as long as it is gone."""
    size = f"{part.size / _MB:.1f} MB" if part.size >= _MB / 20 else f"{max(1, part.size // 1_000)} kB"
    what = ", ".join(filter(None, [part.what, size if part.size else ""]))
    tools = case.conversation.tools_answered[medium.position]
    tool = next(filter(None, tools), None) if medium.is_of_tool else None
    whose = f"result of {tool}; call it again if you need it" if tool else "sent by the user"
    if medium.is_of_tool and tool is None:
        whose = "of a result; ask for it again if you need it"
    if medium.is_refused:
        return f"[{part.kind} refused by the provider: {what}, {whose}]"
    return f"[{part.kind} left out by the gateway: the {_ordinal(number)} of this conversation, {what}, {whose}]"


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else _ORDINALS.get(number % 10, "th")
    return f"{number}{suffix}"


def _outline(case: CompactionContext, sizes: list[int]) -> MediaOutline:
    conversation, request = case.conversation, case.request
    body, units = conversation.body, conversation.units
    ends = [
        at
        for at in range(len(body))
        if body[at].role in ("user", "tool") and (at + 1 == len(body) or body[at + 1].role == "assistant")
    ]
    ends = ends if ends and ends[-1] == len(body) - 1 else [*ends, len(body) - 1]
    rounds = case.caller.policy.media.keep_rounds or case.caller.policy.large_messages.hot_rounds
    spoken = [0, *(at for at in conversation.users if body[at].role == "user")]
    hot = [units[max(0, bisect_right(units, end) - rounds)] if units else 0 for end in ends]
    users = [spoken[bisect_right(spoken, end) - 1] for end in ends]
    fixed = len(request.body) - sum(last - first for first, last in request.parsed.spans)
    head = sum(len(request.message_bytes(MessageIndex(at))) for at in range(conversation.head_length))
    return MediaOutline(sizes, fixed + head, ends, hot, users)


def media_sent(draft: Draft, media: Sequence[Medium]) -> int:
    """How many of these are in a draft."""
    covered = draft.record.covered if draft.record else 0
    left_out = draft.view.left_out if draft.view else frozenset()
    return sum(medium.position >= covered and medium.place not in left_out for medium in media)


def learned_from(refusal: MediaRefusal, sent: int, left: int) -> MediaLimits:
    """What a refusal of so many bytes and so many media has taught; nothing if it is about a single medium."""
    match refusal.what:
        case "bytes":
            return MediaLimits(bytes=min(refusal.limit or sent, sent) - 1)
        case "pictures":
            return MediaLimits(pictures=refusal.limit or max(1, left - 1))
        case "wide" | "pages":
            return MediaLimits(pictures=max(1, left - 1))
        case "one":
            return MediaLimits()
