"""Replacement of images and documents by notes, as `policies/decision/media.py` selects them."""

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
# A message's digest, the encoding, and the message's notes by the number of a medium.
_NotesKey = tuple[bytes, str, tuple[tuple[int, str], ...]]
# The number of a person's first messages that determine the language of a conversation.
_OPENING = 3
_HALF = 0.5


class MediaRemover:
    """Replaces media by notes; one per process."""

    def __init__(self, short_forms: ShortForms, workers: Workers, memory: Memory) -> None:
        """Create a remover. Its caches count against `memory`."""
        self._forms = short_forms
        self._workers = workers
        self._known: Cache[bytes, tuple[MediaPart, ...]] = Cache(memory, "media")
        self._rewritten: Cache[_NotesKey, tuple[bytes, int]] = Cache(memory, "media_notes")
        self._languages: Cache[bytes, Language] = Cache(memory, "media_languages")

    async def remove(self, plan_input: PlanInput, view: PromptView, covered: int) -> PromptView:
        """Return the conversation without media that exceed the upstream's limits or have cooled down.

        covered: the number of messages in the body that a record replaces.
        """
        is_limited = plan_input.media_limits.is_any or plan_input.newest_media_only
        if not plan_input.ages_media or not (is_limited or view.cooled_media):
            return view
        return await self._workers.run(self._remove, plan_input, view, covered)

    def _remove(self, plan_input: PlanInput, view: PromptView, covered: int) -> PromptView:
        parts = self._find(plan_input, view)
        media = [medium for medium in parts if medium.position >= covered]
        body = plan_input.conversation.body
        # The client's bytes, since a short form would make the size of an earlier request smaller than it was.
        sizes = [
            len(plan_input.request.message_bytes(plan_input.conversation.index(at))) for at in range(covered, len(body))
        ]
        left_out = policy.select_left_out(media, [0] * covered + sizes, plan_input.media_limits)
        if plan_input.newest_media_only:
            left_out = {**policy.select_older(media), **left_out}
        return replace(
            self._replace_by_notes(plan_input, view, parts, left_out),
            media=[*parts],
            left_out={medium.place: why for medium, why in left_out.items()},
            media_limits=plan_input.media_limits,
        )

    def _find(self, plan_input: PlanInput, view: PromptView) -> dict[Medium, MediaPart]:
        """Return the media of a conversation in order. Each message is parsed once."""
        parts: dict[Medium, MediaPart] = {}
        turn = 0
        for position, message in enumerate(plan_input.conversation.body):
            turn += message.role == "assistant"
            for number, part in enumerate(self._parts(plan_input, position) if message.media else ()):
                is_of_tool = part.is_of_result or message.role == "tool"
                cooled_at = view.cooled_media.get(position) if is_of_tool else None
                medium = Medium(position, number, turn, part.size, is_of_tool, part.side, part.pages, cooled_at)
                parts[medium] = part
        return parts

    def _parts(self, plan_input: PlanInput, position: int) -> tuple[MediaPart, ...]:
        message = plan_input.conversation.body[position]
        cached = self._known.get(message.digest)
        if cached is not None:
            return cached
        parts = tuple(part for item in _items(plan_input, position) for part in parts_of(item))
        return self._known.keep(message.digest, parts, _PART_BYTES * (1 + len(parts)))

    def _replace_by_notes(
        self, plan_input: PlanInput, view: PromptView, parts: Mapping[Medium, MediaPart], left_out: Collection[Medium]
    ) -> PromptView:
        notes: dict[int, dict[int, str]] = {}
        for number, (medium, part) in enumerate(parts.items(), 1):
            if medium in left_out:
                notes.setdefault(medium.position, {})[medium.number] = self._note(plan_input, medium, part, number)
        rewritten: dict[MessageIndex, tuple[bytes, int]] = {}
        for position, of_message in notes.items():
            index = plan_input.conversation.index(position)
            rewritten[index] = self._write_notes(plan_input, index, view.replaced.get(index), of_message)
        return view.with_rewrites(Step.MEDIA, rewritten) if rewritten else view

    def _write_notes(
        self, plan_input: PlanInput, index: MessageIndex, changed: bytes | None, notes: Mapping[int, str]
    ) -> tuple[bytes, int]:
        """Return a message with these notes, and its tokens. The rewrite of a small unchanged message is cached."""
        key = plan_input.conversation.messages[index].digest, plan_input.request.encoding, tuple(sorted(notes.items()))
        if changed is None and (cached := self._rewritten.get(key)) is not None:
            return cached
        raw = changed if changed is not None else bytes(plan_input.request.message_bytes(index))
        new_bytes = with_notes(raw, notes, plan_input.request.dialect.text_kind)
        rewritten = new_bytes, self._forms.tokens(plan_input, new_bytes)
        if changed is None and len(new_bytes) <= _MOST_KEPT:
            self._rewritten.keep(key, rewritten, len(new_bytes) + _PART_BYTES * len(notes))
        return rewritten

    def _note(self, plan_input: PlanInput, medium: Medium, part: MediaPart, number: int) -> str:
        tools = plan_input.conversation.tools_answered[medium.position]
        tool = next(filter(None, tools), None) if medium.is_of_tool else None
        noted = NotedMedium(part.kind, number, part.what, part.size, medium.is_of_tool, tool)
        return note_of(noted, self._language(plan_input, medium.position))

    def _language(self, plan_input: PlanInput, position: int) -> Language:
        """Return the language of a person's first messages up to this one, so that it stays the same."""
        conversation, outline = plan_input.conversation, plan_input.conversation.outline
        spoken = outline.spoken if outline.spoken and outline.spoken[0] <= position else outline.users
        opening = spoken[: min(_OPENING, bisect_right(spoken, position))]
        name = b"".join(conversation.body[at].digest for at in opening)
        cached = self._languages.get(name)
        if cached is not None:
            return cached
        texts = (
            utterance
            for at in opening
            for utterance in plan_input.request.utterances(at, at + 1)
            if utterance.role == "user"
        )
        return self._languages.keep(name, language_of(utterance.text for utterance in texts), len(name))


def _items(plan_input: PlanInput, position: int) -> list[object]:
    """Return the decoded items of a message."""
    raw = plan_input.request.readable_bytes(plan_input.conversation.index(position))
    try:
        return [json_array.decode(raw)]
    except InvalidJSONError:
        return [json_array.decode(item) for item in json_array.split_items(raw)]


def media_figures(routed: RoutedRequest, prompt: Prompt) -> MediaFigures | None:
    """Return the figures of a request's media and of those that are sent; None if it has none."""
    view = prompt.view
    if view is None or not view.media:
        return None
    covered, limits = prompt.record.covered if prompt.record else 0, view.media_limits
    is_learned = limits != routed.route.media
    return MediaFigures(
        received=len(view.media),
        sent=len(media_left(prompt, view.media)),
        bytes=sum(medium.size for medium in view.media),
        left_out=dict(Counter(why for (position, _), why in sorted(view.left_out.items()) if position >= covered)),
        max_bytes=limits.bytes,
        max_pictures=limits.pictures,
        source="learned" if is_learned else routed.route.media_source if limits.is_any else None,
        learned_at=routed.experience.media_at or None if is_learned else None,
    )


def media_left(prompt: Prompt, media: Sequence[Medium]) -> list[Medium]:
    """Return the media that a prompt sends."""
    covered = prompt.record.covered if prompt.record else 0
    left_out: Collection[tuple[int, int]] = prompt.view.left_out if prompt.view else ()
    return [medium for medium in media if medium.position >= covered and medium.place not in left_out]


def is_mostly_media(plan_input: PlanInput, prompt: Prompt) -> bool:
    """Return True if messages with media are at least half of a prompt's bytes."""
    covered, replaced = prompt.record.covered if prompt.record else 0, prompt.copy.replaced if prompt.copy else {}
    conversation, size = plan_input.conversation, 0
    for position in range(covered, len(conversation.body)):
        if conversation.body[position].media:
            index = conversation.index(position)
            size += len(replaced.get(index) or plan_input.request.message_bytes(index))
    return size >= _HALF * len(prompt.body)
