"""Replacement of pictures and papers by notes, as `policies/decision/media.py` selects them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from policies.conversation.conversation import MessageIndex
from policies.decision import media as policy
from policies.decision.media import Medium
from policies.record.media_notes import NotedMedium, note_of
from policies.record.texts import Language, language_of
from proxy.compaction.plan_input import PlanInput, RoutedRequest
from proxy.compaction.prompt import Prompt
from proxy.compaction.prompt_view import PromptView, Step
from proxy.compaction.short_forms import ShortForms
from proxy.dialects import json_array
from proxy.dialects.media_parts import MediaPart, parts_of, with_notes
from proxy.errors import InvalidJSONError
from proxy.memory import Cache, Memory
from proxy.runtime.workers import Workers
from proxy.telemetry.events import MediaFigures

_PART_BYTES = 300
_MOST_KEPT = 64 * 1024
# A message's digest, the tokenizer, and its notes by the number of a medium.
_NotesKey = tuple[bytes, str, tuple[tuple[int, str], ...]]
# Messages in which a person speaks that tell the language of a conversation.
_OPENING = 3
_HALF = 0.5


class MediaRemover:
    """Replaces media by notes; one per process."""

    def __init__(self, short_forms: ShortForms, workers: Workers, memory: Memory) -> None:
        self._forms = short_forms
        self._workers = workers
        self._known: Cache[bytes, tuple[MediaPart, ...]] = Cache(memory, "media")
        self._rewritten: Cache[_NotesKey, tuple[bytes, int]] = Cache(memory, "media_notes")
        self._languages: Cache[bytes, Language] = Cache(memory, "media_languages")

    async def remove(self, case: PlanInput, view: PromptView, covered: int) -> PromptView:
        """Return the conversation without the media that its upstream has no room for and those that have cooled down.

        covered: the length of the body's part that a record stands for.
        """
        is_limited = case.media_limits.is_any or case.newest_media_only
        if not case.ages_media or not (is_limited or view.cooled_media):
            return view
        return await self._workers.run(self._remove, case, view, covered)

    def _remove(self, case: PlanInput, view: PromptView, covered: int) -> PromptView:
        parts = self._find(case, view)
        media = [medium for medium in parts if medium.position >= covered]
        body = case.conversation.body
        # The client's bytes, since a short form would make the load of an earlier request smaller than it was.
        sizes = [len(case.request.message_bytes(case.conversation.index(at))) for at in range(covered, len(body))]
        gone = policy.select_left_out(media, [0] * covered + sizes, case.media_limits)
        if case.newest_media_only:
            gone = {**policy.select_older(media), **gone}
        return replace(
            self._replace_by_notes(case, view, parts, gone),
            media=[*parts],
            left_out={medium.place: why for medium, why in gone.items()},
            media_limits=case.media_limits,
        )

    def _find(self, case: PlanInput, view: PromptView) -> dict[Medium, MediaPart]:
        """Return the media of a conversation in their order. Each message is parsed once."""
        found: dict[Medium, MediaPart] = {}
        turn = 0
        for position, message in enumerate(case.conversation.body):
            turn += message.role == "assistant"
            for number, part in enumerate(self._parts(case, position) if message.media else ()):
                is_of_tool = part.is_of_result or message.role == "tool"
                cooled_at = view.cooled_media.get(position) if is_of_tool else None
                medium = Medium(position, number, turn, part.size, is_of_tool, part.side, part.pages, cooled_at)
                found[medium] = part
        return found

    def _parts(self, case: PlanInput, position: int) -> tuple[MediaPart, ...]:
        message = case.conversation.body[position]
        known = self._known.get(message.digest)
        if known is not None:
            return known
        found = tuple(part for item in _items(case, position) for part in parts_of(item))
        return self._known.keep(message.digest, found, _PART_BYTES * (1 + len(found)))

    def _replace_by_notes(
        self, case: PlanInput, view: PromptView, parts: Mapping[Medium, MediaPart], gone: Collection[Medium]
    ) -> PromptView:
        notes: dict[int, dict[int, str]] = {}
        for number, (medium, part) in enumerate(parts.items(), 1):
            if medium in gone:
                notes.setdefault(medium.position, {})[medium.number] = self._note(case, medium, part, number)
        others: dict[MessageIndex, tuple[bytes, int]] = {}
        for position, of_message in notes.items():
            index = case.conversation.index(position)
            others[index] = self._write_notes(case, index, view.replaced.get(index), of_message)
        return view.rewritten(Step.MEDIA, others) if others else view

    def _write_notes(
        self, case: PlanInput, index: MessageIndex, changed: bytes | None, notes: Mapping[int, str]
    ) -> tuple[bytes, int]:
        """Return a message with these notes, and its tokens. A small message of the client is rewritten once."""
        key = case.conversation.messages[index].digest, case.request.encoding, tuple(sorted(notes.items()))
        if changed is None and (known := self._rewritten.get(key)) is not None:
            return known
        raw = changed if changed is not None else bytes(case.request.message_bytes(index))
        other = with_notes(raw, notes, case.request.dialect.text_kind)
        made = other, self._forms.tokens(case, other)
        if changed is None and len(other) <= _MOST_KEPT:
            self._rewritten.keep(key, made, len(other) + _PART_BYTES * len(notes))
        return made

    def _note(self, case: PlanInput, medium: Medium, part: MediaPart, number: int) -> str:
        tools = case.conversation.tools_answered[medium.position]
        tool = next(filter(None, tools), None) if medium.is_of_tool else None
        noted = NotedMedium(part.kind, number, part.what, part.size, medium.is_of_tool, tool)
        return note_of(noted, self._language(case, medium.position))

    def _language(self, case: PlanInput, position: int) -> Language:
        """Return the language of what a person said first, up to a message, so that it stays as it is."""
        conversation, outline = case.conversation, case.conversation.outline
        spoken = outline.spoken if outline.spoken and outline.spoken[0] <= position else outline.users
        opening = spoken[: min(_OPENING, bisect_right(spoken, position))]
        name = b"".join(conversation.body[at].digest for at in opening)
        known = self._languages.get(name)
        if known is not None:
            return known
        said = (one for at in opening for one in case.request.utterances(at, at + 1) if one.role == "user")
        return self._languages.keep(name, language_of(one.text for one in said), len(name))


def _items(case: PlanInput, position: int) -> list[object]:
    """Return the decoded items of a message."""
    raw = case.request.readable_bytes(case.conversation.index(position))
    try:
        return [json_array.decode(raw)]
    except InvalidJSONError:
        return [json_array.decode(item) for item in json_array.split_items(raw)]


def media_figures(named: RoutedRequest, prompt: Prompt) -> MediaFigures | None:
    """Return the figures of a request's media and of those that are sent, None if no limit is known."""
    view = prompt.view
    if view is None or not view.media:
        return None
    covered, most = prompt.record.covered if prompt.record else 0, view.media_limits
    is_learned = most != named.route.media
    return MediaFigures(
        received=len(view.media),
        sent=len(media_left(prompt, view.media)),
        bytes=sum(medium.size for medium in view.media),
        left_out=dict(Counter(why for (position, _), why in sorted(view.left_out.items()) if position >= covered)),
        max_bytes=most.bytes,
        max_pictures=most.pictures,
        source="learned" if is_learned else named.route.media_source if most.is_any else None,
        learned_at=named.experience.media_at or None if is_learned else None,
    )


def media_left(prompt: Prompt, media: Sequence[Medium]) -> list[Medium]:
    """Return those of the media that a prompt sends."""
    covered = prompt.record.covered if prompt.record else 0
    left_out: Collection[tuple[int, int]] = prompt.view.left_out if prompt.view else ()
    return [medium for medium in media if medium.position >= covered and medium.place not in left_out]


def is_mostly_media(case: PlanInput, prompt: Prompt) -> bool:
    """Return True if messages with media are at least half of a prompt's bytes."""
    covered, replaced = prompt.record.covered if prompt.record else 0, prompt.copy.replaced if prompt.copy else {}
    conversation, size = case.conversation, 0
    for position in range(covered, len(conversation.body)):
        if conversation.body[position].media:
            index = conversation.index(position)
            size += len(replaced.get(index) or case.request.message_bytes(index))
    return size >= _HALF * len(prompt.body)
