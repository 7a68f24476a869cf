"""Carrying out what `policies/media.py` decides: pictures and papers that give way to a note."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from policies import media as policy
from policies.conversation import MessageIndex
from policies.media import Lesson, MediaLimits, MediaOutline, Medium
from policies.record.media_notes import NotedMedium, note_of
from policies.record.texts import Language, language_of
from proxy.dialects import json_array
from proxy.dialects.media_parts import MediaPart, digests_of, parts_of, with_notes
from proxy.engine.case import CompactionContext, RoutedRequest
from proxy.engine.cooler import Cooler
from proxy.engine.draft import Draft
from proxy.engine.media_lessons import MediaLessons, MediaTeaching, learned_from
from proxy.engine.prompt_view import PromptView, Step
from proxy.errors import InvalidJSONError
from proxy.memory import Cache, Memory
from proxy.observing.events import MediaFigures
from proxy.overflow.media_refusals import MediaRefusal
from proxy.records.media_marks import MediaMarks
from proxy.runtime.workers import Workers
from proxy.stores.sealing import SealedStore

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
# Messages in which a person speaks that tell the language of a conversation.
_OPENING = 3


@dataclass(frozen=True, slots=True)
class FoundMedia:
    """Those of a conversation, in their order, each with what an item says of it."""

    all: list[Medium]
    parts: Mapping[Medium, MediaPart]
    outline: MediaOutline

    def media_behind(self, view: PromptView, covered: int) -> list[Medium]:
        """Those that are sent behind a record of so many messages."""
        return [medium for medium in self.all if medium.position >= covered and medium.place not in view.left_out]


class MediaAger:
    """Leaves media out; one per process."""

    def __init__(self, cooler: Cooler, workers: Workers, sealed: SealedStore, memory: Memory) -> None:
        self._cooler = cooler
        self._workers = workers
        self._taught = MediaTeaching(MediaMarks(sealed, Cache(memory, "media_marks")))
        self._known: Cache[bytes, tuple[MediaPart, ...]] = Cache(memory, "media")
        self._digests: Cache[bytes, tuple[str, ...]] = Cache(memory, "media_digests")
        self._rewritten: Cache[_NotesKey, tuple[bytes, int]] = Cache(memory, "media_notes")
        self._languages: Cache[bytes, Language] = Cache(memory, "media_languages")

    async def age(self, case: CompactionContext, view: PromptView) -> PromptView:
        """The conversation without what its upstream has no room for, as far as that is known, and without what has
        cooled down; the same view if it has room for all."""
        if not case.ages_media:
            return view
        lessons = await self.lessons(case)
        if not (case.route.media.is_any or lessons.limits or lessons.refused or view.cooled_media):
            return view
        return await self._workers.run(self._age, case, view, lessons)

    def _age(self, case: CompactionContext, view: PromptView, lessons: MediaLessons) -> PromptView:
        media = self.of(case, view, lessons.refused)
        gone = policy.reasons(media.all, media.outline, case.route.media, lessons.limits)
        held = case.route.media.at_most(lessons.limits[-1].limits) if lessons.limits else case.route.media
        return replace(self._without(case, view, media, gone, lessons.refused), media_limits=held)

    async def lessons(self, case: CompactionContext) -> MediaLessons:
        """What holds for the conversation; what is news to it is marked, to hold from this request on."""

        async def shown() -> set[str]:
            return await self._workers.run(self._all_digests, case)

        return await self._taught.of(case, shown)

    def _all_digests(self, case: CompactionContext) -> set[str]:
        body = case.conversation.body
        return {digest for at, one in enumerate(body) if one.media for digest in self._digests_at(case, at)}

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
        lessons = await self.lessons(case)
        return await self._workers.run(self._shed, case, view, lessons, refusal, covered, sent, attempt)

    def _shed(
        self,
        case: CompactionContext,
        view: PromptView,
        lessons: MediaLessons,
        refusal: MediaRefusal,
        covered: int,
        sent: int,
        attempt: int,
    ) -> PromptView | None:
        media, refused = self.of(case, view, lessons.refused), lessons.refused
        left = media.media_behind(view, covered)
        if refusal.what == "one":
            theirs = (medium for medium in left if not _is_of_user_now(media.outline, medium))
            gone: dict[Medium, policy.Why] = {medium: "refused" for medium in theirs if medium.is_refused}
            return self._without(case, view, media, gone, refused) if gone else None
        size = sum(medium.size for medium in left)
        if not left or ((refusal.what == "bytes" or not refusal.is_certain) and size < _HALF * sent):
            return None
        learned = learned_from(refusal, sent, left)
        view = replace(view, media_limits=case.route.media.at_most(learned))
        outline = media.outline._replace(sizes=[0] * covered + [*media.outline.sizes[covered:]])
        if attempt < _LAST:
            # As the requests that follow will have it, so that this one begins as they do.
            taught = (*lessons.limits, Lesson(len(media.outline.sizes), case.learned_media.at_most(learned)))
            gone = policy.reasons(media.all, media.outline, case.route.media, taught)
            fewer, weight = [medium for medium in left if medium not in gone], outline.fixed + sum(outline.sizes)
            weight -= sum(medium.size for medium in left if medium in gone)
            if len(fewer) < len(left) and policy.is_within(fewer, weight, _scale(learned, policy.USERS_RELIEF)):
                return self._without(case, view, media, gone, refused)
        most = _scale(learned, _TARGETS[attempt] if attempt < _LAST else 0.0)
        fewest = policy.shed(left, outline, most, hot_too=attempt >= _LAST) or policy.shed(
            left, outline, most, hot_too=True
        )
        gone = dict.fromkeys(fewest, refusal.what)
        return self._without(case, view, media, gone, refused) if gone else None

    async def is_of_texts(self, case: CompactionContext, view: PromptView, *, covered: int, sent: int) -> bool:
        """Whether less than half of a request of so many bytes is media."""
        return await self._workers.run(self._is_of_texts, case, view, covered, sent)

    def _is_of_texts(self, case: CompactionContext, view: PromptView, covered: int, sent: int) -> bool:
        return sum(medium.size for medium in self.of(case, view).media_behind(view, covered)) < _HALF * sent

    async def refused_one(
        self, case: CompactionContext, view: PromptView, refusal: MediaRefusal, covered: int
    ) -> str | None:
        """The digest of the medium that a provider refuses by itself: of the item that it names, else the largest."""
        return await self._workers.run(self._refused_one, case, view, refusal, covered)

    def _refused_one(
        self, case: CompactionContext, view: PromptView, refusal: MediaRefusal, covered: int
    ) -> str | None:
        media = self.of(case, view)
        left = media.media_behind(view, covered)
        if refusal.at is not None and not covered:
            left = [one for one in left if case.conversation.index(one.position) == refusal.at] or left
        largest = max(left, key=lambda medium: medium.size, default=None)
        return None if largest is None else self._digest(case, largest)

    def of(self, case: CompactionContext, view: PromptView, refused: Mapping[str, str] | None = None) -> FoundMedia:
        """The media of a conversation; each message is looked into once. refused: digests of those never taken."""
        conversation, request = case.conversation, case.request
        found: list[Medium] = []
        parts: dict[Medium, MediaPart] = {}
        for position, message in enumerate(conversation.body):
            if not message.media:
                continue
            cooled = view.cooled_media.get(position)
            digests = self._digests_at(case, position) if refused else ()
            for number, part in enumerate(self._parts(case, position)):
                is_of_tool = part.is_of_result or message.role == "tool"
                is_refused = refused is not None and bool(digests) and digests[number] in refused
                from_then = cooled if is_of_tool else None
                medium = Medium(
                    position, number, part.size, is_of_tool, is_refused, part.side, part.pages, from_then
                )  # fmt: skip
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
        found = tuple(part for item in _items(case, position) for part in parts_of(item))
        return self._known.keep(message.digest, found, _PART_BYTES * (1 + len(found)))

    def _digests_at(self, case: CompactionContext, position: int) -> tuple[str, ...]:
        """Of the media of a message. They are of use only where a provider refuses a medium by itself."""
        message = case.conversation.body[position]
        known = self._digests.get(message.digest)
        if known is not None:
            return known
        found = tuple(digest.hex() for item in _items(case, position) for digest in digests_of(item))
        return self._digests.keep(message.digest, found, _PART_BYTES * (1 + len(found)))

    def _digest(self, case: CompactionContext, medium: Medium) -> str:
        return self._digests_at(case, medium.position)[medium.number]

    def _without(
        self,
        case: CompactionContext,
        view: PromptView,
        media: FoundMedia,
        gone: Mapping[Medium, policy.Why],
        refused: Mapping[str, str],
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
                at: self._note(case, medium, media.parts[medium], number, refused)
                for at, (number, medium) in enumerate(there)
                if medium in gone
            }
            if notes:
                index = case.conversation.index(position)
                others[index] = self._write_notes(case, index, view.replaced.get(index), notes)
        rewritten = view.rewritten(Step.MEDIA, others) if others else view
        places = {medium.place: why for medium, why in gone.items()}
        return replace(rewritten, media=media.all, left_out={**places, **view.left_out})

    def _write_notes(
        self, case: CompactionContext, index: MessageIndex, changed: bytes | None, notes: Mapping[int, str]
    ) -> tuple[bytes, int]:
        """A message with these notes, and its tokens. What is small then, as the client sent it, is made once."""
        key = case.conversation.messages[index].digest, case.request.encoding, tuple(sorted(notes.items()))
        if changed is None and (known := self._rewritten.get(key)) is not None:
            return known
        raw = changed if changed is not None else bytes(case.request.message_bytes(index))
        other = with_notes(raw, notes, case.request.dialect.text_kind)
        made = other, self._cooler.tokens(case, other)
        if changed is None and len(other) <= _MOST_KEPT:
            self._rewritten.keep(key, made, len(other) + _PART_BYTES * len(notes))
        return made

    def _note(
        self, case: CompactionContext, medium: Medium, part: MediaPart, number: int, refused: Mapping[str, str]
    ) -> str:
        tools = case.conversation.tools_answered[medium.position]
        tool = next(filter(None, tools), None) if medium.is_of_tool else None
        noted = NotedMedium(part.kind, number, part.what, part.size, medium.is_of_tool, tool)
        refusal = refused.get(self._digest(case, medium), "") if medium.is_refused else None
        return note_of(noted, self._language(case, medium.position), refusal)

    def _language(self, case: CompactionContext, position: int) -> Language:
        """That of what a person said first, up to a message, so that it stays as it is."""
        conversation, outline = case.conversation, case.conversation.outline
        spoken = outline.spoken if outline.spoken and outline.spoken[0] <= position else outline.users
        opening = spoken[: min(_OPENING, bisect_right(spoken, position))]
        name = b"".join(conversation.body[at].digest for at in opening)
        known = self._languages.get(name)
        if known is not None:
            return known
        said = (one for at in opening for one in case.request.utterances(at, at + 1) if one.role == "user")
        return self._languages.keep(name, language_of(one.text for one in said), len(name))


def _is_of_user_now(outline: MediaOutline, medium: Medium) -> bool:
    """Whether it belongs to what the user has said last."""
    return not medium.is_of_tool and medium.position >= (outline.users[-1] if outline.users else 0)


def _items(case: CompactionContext, position: int) -> list[object]:
    """Those that a message consists of, decoded."""
    raw = case.request.readable_bytes(case.conversation.index(position))
    try:
        return [json_array.decode(raw)]
    except InvalidJSONError:
        return [json_array.decode(item) for item in json_array.split_items(raw)]


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


def media_figures(named: RoutedRequest, draft: Draft) -> MediaFigures | None:
    """Of a request and what is sent of it; None if nobody has looked for any."""
    view = draft.view
    if view is None or not view.media:
        return None
    covered, most = draft.record.covered if draft.record else 0, view.media_limits
    is_learned = most != named.route.media
    return MediaFigures(
        received=len(view.media),
        sent=len(media_left(draft, view.media)),
        bytes=sum(medium.size for medium in view.media),
        left_out=dict(Counter(why for (position, _), why in sorted(view.left_out.items()) if position >= covered)),
        max_bytes=most.bytes,
        max_pictures=most.pictures,
        source="learned" if is_learned else named.route.media_source if most.is_any else None,
        learned_at=named.experience.media_at or None if is_learned else None,
    )


def media_left(draft: Draft, media: Sequence[Medium]) -> list[Medium]:
    """Which of these are in a draft."""
    covered = draft.record.covered if draft.record else 0
    left_out: Collection[tuple[int, int]] = draft.view.left_out if draft.view else ()
    return [medium for medium in media if medium.position >= covered and medium.place not in left_out]


def _scale(limits: MediaLimits, share: float) -> MediaLimits:
    """A share of each, but for the side."""
    some = [None if limit is None else int(share * limit) for limit in limits]
    return MediaLimits(*some)._replace(side=limits.side)
