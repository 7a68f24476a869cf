"""A transcript in which every utterance is that of one voice."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from policies.authorship.parts import REMINDER, Part, parts_of, typed_in_result
from policies.conversation.transcript import Utterance


def told_apart(
    utterances: Sequence[Utterance], spoken: Collection[int], foreign: Collection[int] = ()
) -> list[Utterance]:
    """The utterances with those in a user's name taken apart, and what a person typed into results behind them.

    spoken: positions of the messages in which a person speaks. What looks like a person's elsewhere is a report, and so
    it is in the results of shells that may show what strangers wrote: foreign, their positions.
    """
    found: list[Utterance] = []
    for _, together in groupby(utterances, key=lambda said: (said.position, said.role)):
        said = [*together]
        if said[0].role == "user":
            found += _of_user(said, is_spoken=said[0].position in spoken)
        elif said[0].role == "tool":
            found += said
            for one in said:
                found += _typed_utterances(one, is_spoken=one.position in spoken, is_brought=one.position in foreign)
        else:
            found += said
    return found


def _of_user(said: Sequence[Utterance], *, is_spoken: bool) -> Iterator[Utterance]:
    parts = parts_of([one.text for one in said])
    is_bare = any(part.voice == "person" for part in parts)
    resolved = [_resolve_voice(part, is_spoken=is_spoken, is_bare=is_bare) for part in parts]
    for (voice, by), group in groupby(resolved, key=attrgetter("voice", "by")):
        text = "\n".join(part.text for part in group)
        yield replace(said[0], text=text, voice=voice, by=by)
    if not parts:
        yield replace(said[0], text="\n".join(one.text for one in said))


def _resolve_voice(part: Part, *, is_spoken: bool, is_bare: bool) -> Part:
    """Return the part as a person's if a person speaks in its message, else as a report.

    is_bare: whether the message holds a text that only a person types. Then an unsure part is a report.
    """
    if part.voice == "person":
        said_meanwhile = part.by if part.by == REMINDER else ""
        return part._replace(by=said_meanwhile) if is_spoken else Part("report", part.text, part.by or "user role")
    if not part.is_sure and is_spoken and not is_bare:
        return Part("person", part.text)
    return part


def _typed_utterances(said: Utterance, *, is_spoken: bool, is_brought: bool) -> Iterator[Utterance]:
    for part in typed_in_result(said.text, said.tool, is_brought=is_brought):
        if said.error and part.by == said.tool:  # a question that failed has no answer
            continue
        is_theirs = is_spoken or (said.tool is not None and part.by != REMINDER)
        voice = part.voice if part.voice != "person" or is_theirs else "report"
        yield Utterance(said.position, "user", part.text, voice=voice, by=part.by)
