"""Every sentence of a person is in the prompt, or in what the record leaves out, and never in both."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.record.left_out import MOST, REST, not_shown
from tests.support.engines import SESSIONS, config_of, processes
from tests.support.shaped_sessions import CLIENTS, Session, prose
from tests.support.worlds import DEFECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.compaction.plan_input import PlanInput
    from proxy.compaction.prompt import Prompt

pytestmark = pytest.mark.slow

# A quotation of what a request comes back to may show again what a record leaves out.
CONFIG = config_of(8_192, economy=0, recall="off")
ENDS = (
    "and tell me about it before you go on with anything else",
    "since the report of last week does not say a word about it",
    "but leave the rest of the module as it was when I came back from the long walk with the two dogs of my neighbour",
)


def _name(number: int) -> str:
    """Return a name without digits: a text that differs in digits alone is no person's."""
    return "place" + "".join("abcdefghij"[int(digit)] for digit in str(number)) + "x"


class Person:
    """Says sentences of which no one replaces another."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.said: list[str] = []
        session.opens(self.words(2))

    def words(self, number: int) -> str:
        first = len(self.said)
        self.said += [f"Look at {_name(at)} of the plan {ENDS[at % 3]}." for at in range(first, first + number)]
        return " ".join(self.said[first:])

    def does(self, what: str, number: int) -> None:
        match what:
            case "says":
                self.session.answers("Done so far.")
                self.session.says(self.words(number))
            case "steers":
                self.session.works(prose(f"work {len(self.said)}", 60), meanwhile=self.words(1))
            case _:
                size, at = 90 * number, len(self.session.items)
                self.session.works(prose(f"work {at}", size), "Bash", {"command": f"make part{at}"})


def texts_in(value: object) -> str:
    """Return all texts of a body, each on a line of its own."""
    if isinstance(value, str):
        return value
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return "\n".join(map(texts_in, values))


def check(person: Person, case: PlanInput, prompt: Prompt) -> int:
    """Check a prompt with a record; return how many sentences it leaves out.

    A sentence that is read as a client's report is no person's, see `policies.authorship`.
    """
    assert prompt.record is not None
    left_out = [each for each in not_shown(prompt.record.left_out) if each.kind == "said"]
    assert len(prompt.record.left_out) <= MOST
    sent, lost = " ".join(texts_in(json.loads(prompt.body)).split()), {each.text for each in left_out}
    utterances = case.utterances(0, len(case.conversation.body))
    persons = "\n".join(said.text for said in utterances if said.is_persons)
    for sentence in person.said:
        if sentence not in persons:
            continue
        if sentence in lost:
            assert sentence not in sent
        elif sentence not in sent:  # shown cut short
            rests = {text.removeprefix(REST) for text in lost if text.startswith(REST)}
            shown = [sentence.removesuffix(rest).rstrip() for rest in rests if sentence.endswith(rest)]
            assert any(len(start) > 10 and f"{start} …" in sent for start in shown)
    for text in lost:
        assert any(sentence == text or sentence.endswith(text.removeprefix(REST)) for sentence in person.said)
    assert prompt.record.left_out_counts.get("said", 0) == len(left_out)
    return len(left_out)


async def _plays(make: Callable[[], Session], work: Sequence[tuple[str, int]]) -> list[int]:
    """Play a session; return how many sentences each record left out."""
    person, found, digest = Person(make()), list[int](), ""
    async with processes(CONFIG, io.BytesIO(), 1) as (process,):
        for what, number in work:
            person.does(what, number)
            case = await process.case(person.session)
            prompt = await process.engine.prompt_builder.build_first(case)
            assert DEFECTS[person.session.dialect.name](json.loads(prompt.body)) == []
            if prompt.record is not None and (prompt.view is None or not prompt.view.is_cut):
                lost = check(person, case, prompt)
                found += [lost] if prompt.record.digest != digest else []
                digest = prompt.record.digest
    return found


WORK = st.lists(
    st.tuples(st.sampled_from(["says", "steers", "works", "works"]), st.sampled_from([1, 2, 5, 12, 60])),
    min_size=8,
    max_size=30,
)


@pytest.mark.parametrize("make", CLIENTS, ids=["messages", "responses", "chat"])
@SESSIONS
@given(work=WORK)
def test_every_sentence_is_in_the_prompt_or_left_out(make: Callable[[], Session], work: list[tuple[str, int]]) -> None:
    asyncio.run(_plays(make, work))


@pytest.mark.parametrize("make", CLIENTS, ids=["messages", "responses", "chat"])
def test_what_is_left_out_goes_on_from_record_to_record(make: Callable[[], Session]) -> None:
    work = [("says", 60), ("works", 5), ("says", 60), *[("works", 5), ("works", 5), ("says", 12)] * 12]
    found = asyncio.run(_plays(make, work))
    assert len(found) > 4
    assert found[-1] > 50
