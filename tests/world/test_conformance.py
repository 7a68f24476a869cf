"""The ledger judged from outside: by the conformance kit's corpora, and by sessions in plain language, via the proxy.

The summarizer is useless throughout, but for one test: what stands in the last request is what code carried there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from compaction_kit.canaries import CanaryType, seeded_canaries
from compaction_kit.corpus import build_random_session
from compaction_kit.generated import build_generated_session
from compaction_kit.semantic_corpus import build_semantic_heldout_session, build_semantic_session
from compaction_kit.session import build_seeded_session

from policies.conversation.transcript import Utterance
from policies.statements.ledger import Entry, merge, numbered_lines, statements_in, supersede
from tests.support.model_server import ModelServer
from tests.support.natural_sessions import SESSIONS, NaturalSession
from tests.support.scenarios import prose, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from compaction_kit.canaries import Canary

    from tests.support.scenarios import Message

pytestmark = pytest.mark.slow

Said = list[tuple[str, str]]
"""Role and text of each message."""

WINDOWS = (1_500, 3_000, 8_192)
# Words an assistant's answer has, so that a session fills each window several times over.
ANSWERS = {1_500: 35, 3_000: 70, 8_192: 220}
COMPACTIONS = 5
HARD = (CanaryType.SAFETY_RULE, CanaryType.HARD_CONSTRAINT)


@dataclass(frozen=True)
class Judged:
    """A session of the kit; conflicts: what a canary's earlier statement was."""

    said: Said
    canaries: list[Canary]
    conflicts: dict[str, str]

    def lost(self, text: str, *kinds: CanaryType) -> list[str]:
        return [
            canary.content
            for canary in self.canaries
            if canary.type in (kinds or tuple(CanaryType))
            and not all(token.lower() in text.lower() for token in canary.required_tokens)
        ]

    def stale(self, text: str) -> list[str]:
        return [
            canary.id
            for canary in self.canaries
            if any(token.lower() in text.lower() for token in canary.superseded_tokens)
        ]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a record that another request makes."""
    monkeypatch.setattr("proxy.compaction.job.Job.JOIN_WAIT", 0.0)


def seeded(seed: int) -> Judged:
    return Judged(_said(build_seeded_session().turns), seeded_canaries(), {})


def random(seed: int) -> Judged:
    session, canaries = build_random_session(seed)
    return Judged(_said(session.turns), canaries, {})


def generated(seed: int) -> Judged:
    session, canaries = build_generated_session(seed)
    return Judged(_said(session.turns), canaries, {})


def semantic(seed: int) -> Judged:
    session, canaries, meta = build_semantic_session(seed)
    return Judged(_said(session.turns), canaries, meta["initial_statements"])


def heldout(seed: int) -> Judged:
    session, canaries, meta = build_semantic_heldout_session(seed)
    return Judged(_said(session.turns), canaries, meta["initial_statements"])


def _said(turns: Sequence[object]) -> Said:
    return [(str(turn.role), str(turn.text)) for turn in turns]  # type: ignore[attr-defined]


async def sent_at_last(directory: Path, said: Said, window: int) -> str:
    """What the model is sent when a session was compacted five times and nothing of it stands verbatim any more."""
    words = ANSWERS[window]
    messages: list[Message] = [
        {"role": role, "content": f"{text} {prose(number, words)}" if role == "assistant" else text}
        for number, (role, text) in enumerate(said)
    ]
    planted = {text for role, text in said if role == "user"}
    settings = {
        "models": [{"match": "*", "context_window": window}],
        "store": {"url": "memory://"},
    }
    async with stage(directory, ModelServer(window=window, summaries="useless"), **settings) as play:
        checkpoints = set()
        for number in range(400):
            end = min(2 + 8 * number, len(messages))
            if end == len(messages) and number % 2:
                messages += [
                    {"role": "user", "content": f"Go on with part {number}."},
                    {"role": "assistant", "content": prose(("more", number), 2 * words)},
                ]
            reply = await play.post(messages[:end])
            assert reply.status == 200
            checkpoints.add(reply.headers.get("x-compaction-checkpoint", "none"))
            verbatim = planted & {str(message["content"]) for message in play.sent[-1].messages}
            if len(checkpoints) > COMPACTIONS and not verbatim and end == len(messages):
                return play.sent[-1].texts
    raise AssertionError(f"{len(checkpoints) - 1} compactions; still verbatim: {verbatim}")


@pytest.mark.requirement("R3 8.1 correct")
@pytest.mark.anyio
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("corpus", "seed", "most_stale"),
    [
        (seeded, 0, 0),
        *((corpus, seed, 0) for corpus in (random, generated) for seed in (1, 2)),
        *((corpus, seed, 4) for corpus in (semantic, heldout) for seed in (1, 2)),
    ],
)
async def test_the_kits_sessions_through_the_proxy(
    tmp_path: Path, corpus: Callable[[int], Judged], seed: int, window: int, most_stale: int
) -> None:
    judged = corpus(seed)
    text = await sent_at_last(tmp_path, judged.said, window)
    assert judged.lost(text, *HARD) == []
    assert len(judged.stale(text)) <= most_stale
    if window >= 3_000:
        assert len(judged.lost(text)) <= 0.05 * len(judged.canaries)


@pytest.mark.anyio
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.name)
async def test_sessions_in_plain_language_through_the_proxy(
    tmp_path: Path, session: NaturalSession, window: int
) -> None:
    said = [message for text in session.said for message in (("user", text), ("assistant", "Noted."))]
    text = await sent_at_last(tmp_path, [("system", "You help."), *said], window)
    wanted = session.rules if window < 3_000 else (*session.rules, *session.facts)
    assert [words for words in wanted if words not in text] == []
    assert [words for words in session.gone if words in text] == []


def carried(judged: Judged, name: Callable[[list[Entry]], str] = lambda entries: "") -> str:
    """The entries after a compaction every fifteen messages; `name` writes what the summarizer answers."""
    turns = [turn for turn in judged.said if turn[0] != "system"]
    utterances = [Utterance(i, "user" if role == "user" else "assistant", text) for i, (role, text) in enumerate(turns)]
    entries: list[Entry] = []
    for start in range(0, len(utterances), 15):
        entries = merge(entries, statements_in(utterances[start : start + 15], (), first_user=0))
        entries = supersede(entries, name(entries))
    return "\n".join(entry.text for entry in entries)


# "go", the programming language, stands in "goal": the kit's own label would count as stale.
GENERATED = [seed for seed in range(120) if not any("go" in c.superseded_tokens for c in generated(seed).canaries)]


@pytest.mark.parametrize(("corpus", "seeds"), [(random, range(60)), (generated, GENERATED)])
def test_no_stale_value_and_no_loss_over_many_seeds(corpus: Callable[[int], Judged], seeds: Sequence[int]) -> None:
    for seed in seeds:
        judged = corpus(seed)
        text = carried(judged)
        assert (seed, judged.lost(text), judged.stale(text)) == (seed, [], [])


@pytest.mark.parametrize("corpus", [semantic, heldout])
def test_a_summarizer_that_names_superseded_statements_leaves_no_stale_value(corpus: Callable[[int], Judged]) -> None:
    for seed in range(10):
        judged = corpus(seed)

        def names(entries: list[Entry], judged: Judged = judged) -> str:
            lines = [line.split(". ", 1) for line in numbered_lines(entries)]
            canaries = {canary.id: canary.content for canary in judged.canaries}
            pairs = [
                f"{earlier} -> {later}"
                for identity, initial in judged.conflicts.items()
                for earlier, old in lines
                for later, new in lines
                if old.split("] ", 1)[1] in initial and new.split("] ", 1)[1] in canaries[identity]
            ]
            return "\n".join(["## Goal", "x", "## Superseded", *pairs])

        text = carried(judged, names)
        assert (seed, judged.lost(text), judged.stale(text)) == (seed, [], [])
