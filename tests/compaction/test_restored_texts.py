"""Files are read, changed and pointed to in any order: what a pointer points to is in the prompt, in every dialect."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.compaction.prompt_view import Step
from tests.support.engines import SESSIONS, WINDOW, config_of, items_of, processes
from tests.support.shaped_sessions import CLIENTS, ClaudeCode, Opencode, Session, prose
from tests.support.worlds import DEFECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.compaction.prompt import Prompt

pytestmark = pytest.mark.slow

STUB = "Wasted call — file unchanged since your last Read. Refer to that earlier tool_result instead."
SHORTENED = "shortened; read the lines you need with offset and limit"
PATHS = ("/repo/src/parser.py", "/repo/src/totals.py")


class Expected(NamedTuple):
    """What a pointer stands for: how the text begins, what is in its middle, and what was changed since."""

    begins: str
    middle: str
    edits: tuple[str, ...]


class Client:
    """A client that does not send a file twice, as Claude Code: own changes count as readings."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.pointers: dict[str, Expected] = {}
        self._known: dict[str, Expected] = {}
        self._versions = 0
        session.opens("Move the totals to cents.")

    def does(self, what: str, path: str, size: int) -> None:
        getattr(self, f"_{what}")(path, size)

    def _read(self, path: str, size: int) -> None:
        if known := self._known.get(path):
            self.session.works(STUB, "Read", {"file_path": path})
            self.pointers[f"t{self.session.calls}"] = known
            return
        self._known[path], text = self._text(path, size)
        self.session.works(text, "Read", {"file_path": path})

    def _write(self, path: str, size: int) -> None:
        self._known[path], text = self._text(path, size)
        self.session.works("The file has been written.", "Write", {"file_path": path, "content": text})

    def _edit(self, path: str, size: int) -> None:
        if (known := self._known.get(path)) is None:
            return self._read(path, size)
        self._versions += 1
        new = f"edited_{self._versions}_of_{path}"
        change = {"file_path": path, "old_string": "the parser", "new_string": new}
        self.session.works("The file has been updated.", "Edit", change)
        self._known[path] = known._replace(edits=(*known.edits, new))
        return None

    def _touched(self, path: str, _: int) -> None:
        """Somebody else has changed the file: the next reading brings it whole."""
        self._known.pop(path, None)

    def _bash(self, _: str, size: int) -> None:
        self._versions += 1
        self.session.works(prose(f"bash {self._versions}", size), "Bash", {"command": f"make part{self._versions}"})

    def _says(self, _: str, __: int) -> None:
        self.session.answers("Done so far.")
        self.session.says(f"Go on with part {len(self.session.items)}, please.")

    def _text(self, path: str, size: int) -> tuple[Expected, str]:
        self._versions += 1
        lines = [f"begin_{self._versions}_of_{path}", *prose(f"{path} {self._versions}", size).splitlines()]
        # No record quotes a line of prose.
        return Expected(lines[0], lines[len(lines) // 2], ()), "\n".join(lines)


def pointers_in(items: Sequence[dict[str, Any]]) -> list[str]:
    """The calls of which a result is still the line alone, whatever the dialect."""
    results = [
        part for item in items for part in (item.get("content") if isinstance(item.get("content"), list) else [item])
    ]
    return [
        str(part.get("tool_use_id") or part.get("call_id") or part.get("tool_call_id"))
        for part in results
        if STUB in (part.get("content"), part.get("output"))
    ]


def check(client: Client, prompt: Prompt) -> None:
    """What must hold for every prompt."""
    session, text = client.session, prompt.body.decode()
    assert DEFECTS[session.dialect.name](json.loads(prompt.body)) == []
    if prompt.copy is None:
        assert prompt.body == session.body()
        return
    assert prompt.view is not None
    if prompt.view.is_cut:
        return
    for name in pointers_in(items_of(session, prompt.body)):
        expected = client.pointers[name]
        assert expected.middle in text or (SHORTENED in text and expected.begins in text)
        assert all(edit in text for edit in expected.edits)


def state_of(prompt: Prompt) -> tuple[object, ...]:
    """What a prompt's bytes may depend on beside the messages: the cut and the batches."""
    steps = prompt.view.steps if prompt.view is not None else {}
    short = {index for index, each in steps.items() if Step.SHORT_FORM in each}
    return prompt.record and prompt.record.digest, frozenset(short), prompt.copy is None


WORK = st.lists(
    st.tuples(
        st.sampled_from(["read", "read", "read", "edit", "write", "touched", "bash", "bash", "bash", "bash", "says"]),
        st.sampled_from(PATHS),
        st.sampled_from([120, 400, 900, 2_600]),
    ),
    min_size=12,
    max_size=40,
)


async def _plays(make: Callable[[], Session], work: Sequence[tuple[str, str, int]]) -> int:
    """Play a session at two replicas by turns; return how many texts were put back."""
    client, faults, restored = Client(make()), io.BytesIO(), 0
    before: tuple[tuple[object, ...], list[dict[str, Any]]] | None = None
    async with processes(config_of(), faults) as (one, two):
        for what, path, size in work:
            client.does(what, path, size)
            prompt = await one.prompt(client.session)
            check(client, prompt)
            assert (await two.prompt(client.session)).body == prompt.body
            sent, state = items_of(client.session, prompt.body), state_of(prompt)
            if before is not None and before[0] == state:
                assert sent[: len(before[1])] == before[1]
            before = state, sent
            restored += len(prompt.view.restored) if prompt.view is not None else 0
    assert b"dereference_failed" not in faults.getvalue()
    return restored


@pytest.mark.parametrize("make", CLIENTS, ids=["messages", "responses", "chat"])
@settings(SESSIONS, max_examples=40)
@given(work=WORK)
def test_whatever_is_read_and_changed_a_pointer_points_to_something(
    make: Callable[[], Session], work: list[tuple[str, str, int]]
) -> None:
    asyncio.run(_plays(make, work))


@pytest.mark.parametrize("make", CLIENTS, ids=["messages", "responses", "chat"])
def test_texts_are_put_back_all_along_a_session(make: Callable[[], Session]) -> None:
    work = [("read", PATHS[0], 900), ("read", PATHS[1], 400)]
    for number in range(30):
        work.append(("bash", "", 400))
        if number % 5 == 4:
            work.append(("read", PATHS[number % 2], 0))
        if number == 12:
            work.append(("edit", PATHS[0], 0))
    assert asyncio.run(_plays(make, work)) > 5


async def _last(session: Session, **policy: object) -> Prompt:
    async with processes(config_of(**policy), io.BytesIO(), 1) as (process,):
        return await process.prompt(session)


def _long_session(make: Callable[[], Session], size: int = 900) -> Client:
    client = Client(make())
    for what, path, words in [("read", PATHS[0], size), *([("bash", "", 500)] * 25), ("read", PATHS[0], 0)]:
        client.does(what, path, words)
    return client


@pytest.mark.parametrize("make", CLIENTS, ids=["messages", "responses", "chat"])
def test_dereference_off_leaves_the_line(make: Callable[[], Session]) -> None:
    client = _long_session(make)
    (expected,) = client.pointers.values()
    on, off = (asyncio.run(_last(client.session, dereference=mode)) for mode in ("on", "off"))
    assert expected.middle in on.body.decode()
    assert pointers_in(items_of(client.session, on.body)) == []
    assert pointers_in(items_of(client.session, off.body)) == [*client.pointers]
    assert off.view is not None
    assert not off.view.restored
    assert on.tokens > off.tokens + 300


@pytest.mark.parametrize("make", CLIENTS, ids=["messages", "responses", "chat"])
def test_a_text_without_room_is_visibly_shortened(make: Callable[[], Session]) -> None:
    client = _long_session(make, size=14_000)
    (expected,) = client.pointers.values()
    prompt = asyncio.run(_last(client.session))
    text = prompt.body.decode()
    assert SHORTENED in text
    assert expected.begins in text
    assert expected.middle not in text
    assert prompt.tokens < WINDOW


@pytest.mark.parametrize("output", [1_024, 6_000])
def test_no_text_that_is_put_back_takes_the_room_of_the_answer(output: int) -> None:
    client = _long_session(ClaudeCode, size=7_000)
    (expected,) = client.pointers.values()
    body = json.loads(client.session.body()) | {"max_tokens": output}
    client.session.body = lambda: json.dumps(body, ensure_ascii=False).encode()  # type: ignore[method-assign]
    prompt = asyncio.run(_last(client.session))
    assert prompt.tokens + output < WINDOW
    assert (expected.middle in prompt.body.decode()) is (output == 1_024)


def test_marks_errors_and_what_stands_beside_a_pointer_stay() -> None:
    client = _long_session(ClaudeCode)
    answer = client.session.items[-1]["content"][0]
    answer["cache_control"] = {"type": "ephemeral"}
    answer["content"] = [{"type": "text", "text": f"{STUB}\n<system-reminder>Be brief.</system-reminder>"}]
    prompt = asyncio.run(_last(client.session))
    (result,) = items_of(client.session, prompt.body)[-1]["content"]
    assert {key: value for key, value in result.items() if key != "content"} == {
        "type": "tool_result",
        "tool_use_id": answer["tool_use_id"],
        "cache_control": {"type": "ephemeral"},
    }
    (part,) = result["content"]
    assert next(iter(client.pointers.values())).middle in part["text"]
    assert part["text"].endswith("\n<system-reminder>Be brief.</system-reminder>")


def test_a_mark_on_a_part_of_chat_stays() -> None:
    client = _long_session(Opencode)
    mark = {"type": "ephemeral"}
    client.session.items[-1]["content"] = [{"type": "text", "text": STUB, "cache_control": mark}]
    prompt = asyncio.run(_last(client.session))
    (part,) = items_of(client.session, prompt.body)[-1]["content"]
    assert part["cache_control"] == mark
    assert next(iter(client.pointers.values())).middle in part["text"]


def test_an_error_and_a_file_that_nobody_read_stay_as_they_are() -> None:
    client = _long_session(ClaudeCode)
    client.session.works(STUB, "Read", {"file_path": "/repo/never.py"})
    prompt = asyncio.run(_last(client.session))
    assert prompt.view is not None
    assert prompt.view.unresolved == 1
    assert prompt.body.decode().count(STUB) == 1
    client.session.items[-3]["content"][0]["is_error"] = True
    prompt = asyncio.run(_last(client.session))
    assert prompt.body.decode().count(STUB) == 2


def test_the_block_of_a_file_of_rules_stands_in_front_of_the_record_and_needs_no_other() -> None:
    session = ClaudeCode()
    session.opens("Move the totals.", rules="Never push to main_branch_x.")
    for number in range(25):
        session.works(prose(number, 500), "Bash", {"command": f"make {number}"})
    seen = 'This file is already in your context (see "Contents of /repo/CLAUDE.md" above) and has not changed on disk.'
    session.works(f"<system-reminder>{seen}</system-reminder>", "Read", {"file_path": "/repo/CLAUDE.md"})
    prompt = asyncio.run(_last(session))
    assert prompt.record is not None
    assert prompt.view is not None
    assert (prompt.view.restored, prompt.view.unresolved) == ((), 0)
    assert "Never push to main_branch_x." in prompt.body.decode()
