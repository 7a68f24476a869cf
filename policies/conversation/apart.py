"""Splitting of a transcript into utterances of one voice each."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from policies.authorship.parts import REMINDER, Part, parts_of, typed_in_result
from policies.conversation.transcript import Utterance


def split_voices(
    utterances: Sequence[Utterance], spoken: Collection[int], foreign: Collection[int] = ()
) -> list[Utterance]:
    """Return the utterances split by voice, with a person's words in tool results as separate utterances.

    spoken: positions of the messages of a person. In other messages, text that looks like a person's is a report.
    foreign: positions of shell results that may show strangers' text. Such text in them is a report too.
    """
    split: list[Utterance] = []
    for _, message_utterances in groupby(utterances, key=lambda utterance: (utterance.position, utterance.role)):
        group = [*message_utterances]
        if group[0].role == "user":
            split += _split_user_message(group, is_spoken=group[0].position in spoken)
        elif group[0].role == "tool":
            split += group
            for utterance in group:
                split += _typed_utterances(
                    utterance, is_spoken=utterance.position in spoken, is_brought=utterance.position in foreign
                )
        else:
            split += group
    return split


def _split_user_message(utterances: Sequence[Utterance], *, is_spoken: bool) -> Iterator[Utterance]:
    parts = parts_of([utterance.text for utterance in utterances])
    is_bare = any(part.voice == "person" for part in parts)
    resolved = [_resolve_voice(part, is_spoken=is_spoken, is_bare=is_bare) for part in parts]
    for (voice, by), group in groupby(resolved, key=attrgetter("voice", "by")):
        text = "\n".join(part.text for part in group)
        yield replace(utterances[0], text=text, voice=voice, by=by)
    if not parts:
        yield replace(utterances[0], text="\n".join(utterance.text for utterance in utterances))


def _resolve_voice(part: Part, *, is_spoken: bool, is_bare: bool) -> Part:
    """Return the part as a person's if a person speaks in its message, else as a report.

    is_bare: True if the message contains a text that only a person types. An unsure part is then a report.
    """
    if part.voice == "person":
        reminder = part.by if part.by == REMINDER else ""
        return part._replace(by=reminder) if is_spoken else Part("report", part.text, part.by or "user role")
    if not part.is_sure and is_spoken and not is_bare:
        return Part("person", part.text)
    return part


def _typed_utterances(result: Utterance, *, is_spoken: bool, is_brought: bool) -> Iterator[Utterance]:
    for part in typed_in_result(result.text, result.tool, is_brought=is_brought):
        if result.error and part.by == result.tool:  # a question that failed has no reply
            continue
        is_of_person = is_spoken or (result.tool is not None and part.by != REMINDER)
        voice = part.voice if part.voice != "person" or is_of_person else "report"
        yield Utterance(result.position, "user", part.text, voice=voice, by=part.by)
