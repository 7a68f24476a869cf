"""What refusals teach of media, and what a conversation knows of that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from policies.media import MANY, NO_MEDIA_LIMITS, Lesson, MediaLimits, Medium
from proxy.engine.case import CompactionContext
from proxy.overflow.media_refusals import MediaRefusal
from proxy.records.media_marks import MOST, MediaMark, MediaMarks


@dataclass(frozen=True, slots=True)
class MediaLessons:
    """What a conversation was taught: in the order in which it was, and which media are taken in no request, by their
    digests, with what was said of them."""

    limits: Sequence[Lesson] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


class MediaTeaching:
    """Keeps lessons with the conversations that they were taught to; one per process."""

    def __init__(self, marks: MediaMarks) -> None:
        self._marks = marks

    async def of(self, case: CompactionContext, shown: Callable[[], Awaitable[set[str]]]) -> MediaLessons:
        """What holds for a conversation; what is news to it is marked, to hold from this request on. shown: the digests
        of its media."""
        profile, length = case.experience, len(case.conversation.body)
        marks = await self._marks.of(case.chain)
        while True:
            # The newest holds, whoever has learned it, and whether it takes more or less than the one before.
            newest = max(marks, key=lambda mark: mark.at, default=None)
            known, at = case.learned_media, profile.media_at
            if newest is not None and at <= newest.at:
                known, at = newest.limits, newest.at
            held, taught, refused = NO_MEDIA_LIMITS, list[Lesson](), dict[str, str]()
            for mark in marks:
                refused = {**mark.refused, **refused}
                if mark.is_of(case.chain):
                    held = mark.limits
                    taught.append(Lesson(mark.length, held))
            new = {one: profile.refused_words.get(one, "") for one in profile.refused_media if one not in refused}
            if new:
                there = await shown()
                new = {digest: words for digest, words in new.items() if digest in there}
            if known == held and not new:
                return MediaLessons(taught, refused)
            if len(marks) == MOST or case.is_let_through:
                # Where nothing is marked, or can be any more, what is news holds from the last mark on.
                taught.append(Lesson(taught[-1].length if taught else 0, known))
                return MediaLessons(taught, {**new, **refused})
            mark = MediaMark(length, case.chain.digests[length].hex(), at, refused=new, **known._asdict())
            marks.append(await self._marks.add(case.chain, len(marks), mark))


def learned_from(refusal: MediaRefusal, sent: int, left: Sequence[Medium]) -> MediaLimits:
    """What a refusal of so many bytes with these media has taught; nothing if it is about a single medium."""
    fewer = max(1, len(left) - 1)
    side, pages = refusal.limit or 0, sum(medium.pages for medium in left)
    match refusal.what:
        case "bytes":
            return MediaLimits(bytes=min(refusal.limit or sent, sent) - 1)
        case "wide" if side and any(medium.side > side for medium in left):
            return MediaLimits(many=min(MANY, fewer), side=side)
        case "pages" if pages:
            return MediaLimits(pages=min(refusal.limit or pages, max(1, pages - 1)))
        case "pictures" if refusal.limit:
            return MediaLimits(pictures=refusal.limit)
        case "pictures" | "wide" | "pages":
            return MediaLimits(pictures=fewer)
        case "one":
            return NO_MEDIA_LIMITS
