"""Needed-again recall: whether the names that an agent uses next still stand in the prompt it answers.

A need is a name in the agent's next message that stood last more than half a window, or so many tokens (`far`), back.
It is met (`recall`) where the name is in what is sent, and with its surroundings (`context`) where it stands beside
characters that it stood beside before: a bare list of names meets none so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import accumulate, islice, takewhile

from policies.authorship.arguments import strings_in
from policies.conversation.conversation import MessageIndex
from policies.record.names import has_name, names_in
from proxy.compaction.plan_input import PlanInput
from proxy.dialects import json_array
from proxy.dialects.reader import CountedRequest

# Shares of the window: of requests that are measured, and of what lies between a name and its need.
_MEASURED = 0.87
_FAR = 0.5
# Characters beside a name that make its surroundings, on one of its sides.
_BESIDE = 8
# Occurrences of one name that are tried, the newest first.
_MOST_OCCURRENCES = 200
# Messages whose text is kept.
_REMEMBERED = 4_096
# In a call's arguments, which are text of JSON.
_ESCAPES = ("\\n", "\\t", '\\"')


@dataclass(frozen=True, slots=True)
class Need:
    """One name that is needed again, and pieces of text of which each is the name with its surroundings."""

    name: str
    surrounded: frozenset[str]


@dataclass(frozen=True, slots=True)
class Met:
    """Of so many needs, how many were met; and of the answers, how many had all that they needed."""

    recalled: int = 0
    in_context: int = 0
    steps: int = 0

    def __add__(self, other: Met) -> Met:
        return Met(self.recalled + other.recalled, self.in_context + other.in_context, self.steps + other.steps)


@dataclass(frozen=True, slots=True)
class Remembered:
    """The needs of one session's answers, and how many were met by what was sent, by the newest messages of the same
    size, and by the newest that fit the window. requests: measured; sent_tokens: of all of them."""

    needs: int = 0
    sent: Met = Met()
    truncated: Met = Met()
    window: Met = Met()
    requests: int = 0
    sent_tokens: int = 0

    def __add__(self, other: Remembered) -> Remembered:
        return Remembered(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class Recall:
    """Names that answers needed of far back, in requests that fill the window, and the share that was met: by what was
    sent, there with their surroundings too; by the newest messages of the same size; by as many as the window takes.

    tokens_sent: of such a request, on average. steps_possible: of the answers, those that had every such name in what
    was sent; steps_full_window: in as many of the newest messages as the window takes.
    """

    needs: int
    recall: float
    in_context: float
    newest_same_size: float
    newest_full_window: float
    tokens_sent: int
    steps_possible: float
    steps_full_window: float


@dataclass(frozen=True, slots=True)
class RecallMeasure:
    """Measures recall as a replay goes on.

    common: names that mean nothing, since most sessions have them. far: tokens between a name and its need, if that is
    less than half a window. sums: by session and policy.
    """

    common: frozenset[str] = frozenset()
    far: int | None = None
    sums: dict[tuple[str, str], Remembered] = field(default_factory=lambda: defaultdict(Remembered))

    def __call__(self, session: str, case: PlanInput, sent: CountedRequest, following: CountedRequest) -> None:
        self.sums[session, case.caller.policy_name] += self._measure(case, sent, following)

    def of(self, session: str, policy: str) -> Recall | None:
        """Return the recall of a session under a policy; None if nothing was needed."""
        met = self.sums[session, policy]
        if not met.needs:
            return None
        return Recall(
            needs=met.needs,
            recall=round(met.sent.recalled / met.needs, 3),
            in_context=round(met.sent.in_context / met.needs, 3),
            newest_same_size=round(met.truncated.recalled / met.needs, 3),
            newest_full_window=round(met.window.recalled / met.needs, 3),
            tokens_sent=met.sent_tokens // met.requests,
            steps_possible=round(met.sent.steps / met.requests, 3),
            steps_full_window=round(met.window.steps / met.requests, 3),
        )

    def _measure(self, case: PlanInput, sent: CountedRequest, following: CountedRequest) -> Remembered:
        """What the answer to a request, which the next one repeats, needs of far back."""
        request, window = case.request, case.route.window
        if window is None:
            return Remembered()
        span = window.tokens if self.far is None else min(window.tokens, int(self.far / _FAR))
        if request.tokens <= _MEASURED * span:
            return Remembered()
        wanted = needs(request, following, span, self.common)
        budget = case.limits.budget.usable
        return Remembered(
            needs=len(wanted),
            sent=_met_names(wanted, text_of_all(sent)),
            truncated=_met_names(wanted, _newest(request, sent.tokens)),
            window=_met_names(wanted, _newest(request, budget)),
            requests=1,
            sent_tokens=sent.tokens,
        )


def _met_names(wanted: Sequence[Need], text: str) -> Met:
    recalled = sum(has_name(text, need.name) for need in wanted)
    in_context = sum(any(piece in text for piece in need.surrounded) for need in wanted)
    return Met(recalled, in_context, int(recalled == len(wanted)))


def _newest(request: CountedRequest, tokens: int) -> str:
    """The text of head and newest messages within so many tokens, tools included."""
    conversation = request.conversation
    room = tokens - conversation.fixed_tokens
    kept = [*conversation.indexes[: conversation.head_length]]
    for index in reversed(conversation.indexes[conversation.head_length :]):
        room -= request.messages[index].tokens
        if room < 0:
            break
        kept.append(index)
    return "\n".join(text_of(request, index) for index in kept)


def needs(request: CountedRequest, following: CountedRequest, window: int, common: Container[str] = ()) -> list[Need]:
    """What the answer to `request`, which the next request repeats, needs of far back; `common` names are none."""
    answer = takewhile(
        lambda at: following.messages[at].role == "assistant", _indexes(following, len(request.messages))
    )
    wanted = set[str]().union(*(names_in(text_of(following, at)) for at in answer))
    sizes = [message.tokens for message in request.messages]
    behind = [request.tokens - request.tools_tokens - end for end in accumulate(sizes)]
    texts = [text_of(request, at) for at in _indexes(request)]
    far = [text for text, distance in zip(texts, behind, strict=True) if distance > _FAR * window]
    near = "\n".join(texts[len(far) :])
    return [
        Need(name, frozenset(_surroundings(name, far)))
        for name in wanted
        if name not in common and not has_name(near, name) and any(has_name(text, name) for text in far)
    ]


def text_of(request: CountedRequest, index: MessageIndex) -> str:
    """All text of one message, with single spaces between its words."""
    return _text(bytes(request.readable_bytes(index)))


@lru_cache(maxsize=_REMEMBERED)
def _text(raw: bytes) -> str:
    """Every request of a session repeats the messages of the one before."""
    text = "\n".join(strings_in(json_array.decode(raw)))
    for escape in _ESCAPES:
        text = text.replace(escape, " ")
    return " ".join(text.split())


def text_of_all(request: CountedRequest) -> str:
    return "\n".join(text_of(request, at) for at in _indexes(request))


def _indexes(request: CountedRequest, first: int = 0) -> Iterator[MessageIndex]:
    return (MessageIndex(at) for at in range(first, len(request.messages)))


def _surroundings(name: str, texts: Sequence[str]) -> Iterator[str]:
    for text in reversed(texts):
        for found in islice(_occurrences(name, text), _MOST_OCCURRENCES):
            start, end = found.span()
            if start >= _BESIDE:
                yield text[start - _BESIDE : end]
            if len(text) - end >= _BESIDE:
                yield text[start : end + _BESIDE]


def _occurrences(name: str, text: str) -> Iterator[re.Match[str]]:
    return re.finditer(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", text)
