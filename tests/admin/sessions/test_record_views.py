"""Records as they are shown, and what one took over from another."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec import structs

from policies.record.lineage import Lineage, after_compaction
from policies.record.pins import Pin
from policies.record.reports import Report
from policies.record.rules import RuleFile
from policies.statements.entries import Entry
from policies.tool_calls.browsing import BrowserStep
from proxy.admin.sessions import records
from proxy.memory import Memory
from proxy.sessions.index import Session
from proxy.sessions.sessions import Sessions
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import SealedStore, Sealer
from tests.support.records import generation, made

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.record.record import Record

pytestmark = pytest.mark.anyio

RECORD = made(generation(1))
NAME = b"n" * 32


def said(text: str, position: int, kind: str = "directive") -> Entry:
    return Entry(kind, text, position)  # type: ignore[arg-type]


def record(text: str, *entries: Entry) -> Record:
    return structs.replace(RECORD, text=text, entries=entries)


def test_lines_are_told_as_the_same_added_or_gone() -> None:
    found = records.compare_records(record("a\nb\nc"), record("a\nx\nc\nd")).lines
    assert [(line.kind, line.text) for line in found] == [
        ("same", "a"),
        ("gone", "b"),
        ("added", "x"),
        ("same", "c"),
        ("added", "d"),
    ]


def test_statements_are_kept_superseded_dropped_or_added() -> None:
    kept, old = said("Never touch /etc.", 0), said("The deploy window is Tuesday 10:00 UTC.", 0)
    lost, new = said("The codename is Heron.", 2, "fact"), said("The deploy window is Thursday 09:30 UTC.", 8)
    found = records.compare_records(record("a", kept, old, lost), record("b", kept, new))
    assert found.kept == 1
    assert [(each.entry.text, each.by.text) for each in found.superseded] == [(old.text, new.text)]
    assert [entry.text for entry in found.dropped] == [lost.text]
    assert [entry.text for entry in found.added] == [new.text]


def test_two_records_that_share_nothing_are_compared_within_a_bound() -> None:
    older = record("a", *(said(f"The value of key {number} is {number}.", 0, "fact") for number in range(200)))
    newer = record("b", *(said(f"The name of host {number} is h{number}.", 9, "fact") for number in range(200)))
    found = records.compare_records(older, newer)
    assert (found.kept, len(found.dropped), len(found.added)) == (0, 200, 200)


class Counting(MemoryStore):
    """Counts how often it is asked."""

    asked = 0

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self.asked += 1
        return await super().get_many(keys)


def test_a_view_has_what_the_record_says() -> None:
    shown = records.view_of(RECORD, None)
    assert (shown.text, shown.comparison, shown.row.digest) == (RECORD.text, None, RECORD.digest)


async def test_a_lineage_is_followed_back_as_far_as_the_store_has_it() -> None:
    store, sealer = MemoryStore(), Sealer(None)
    digests = [f"{number:064x}" for number in range(4)]
    for parent, digest in pairwise(digests):
        key = f"cp:{{tag}}:{RECORD.version}:{digest}"
        each = msgspec.json.encode(structs.replace(RECORD, digest=digest, parent=parent))
        await store.put(key, sealer.seal(key, each), 600)
    sessions = Sessions(SealedStore(store, sealer, 600), Memory())
    session = Session(id="a" * 64, label="", model="m", seen=0.0, record=("tag", digests[3]))
    found = await records.export_session(sessions, session, NAME, "mask")
    assert [record.digest for record in found.records] == [digests[3], digests[2], digests[1]]
    found = await records.export_session(sessions, structs.replace(session, record=None), NAME, "mask")
    assert found.records == []


async def test_records_that_a_lineage_tells_of_are_read_together() -> None:
    store, sealer = Counting(), Sealer(None)
    digests = [f"{number:064x}" for number in range(30)]
    lineage = Lineage(first_seen=0.0)
    for parent, digest in zip([None, *digests[:-1]], digests, strict=True):
        key, each = f"cp:{{tag}}:{RECORD.version}:{digest}", structs.replace(RECORD, digest=digest, parent=parent)
        await store.put(key, sealer.seal(key, msgspec.json.encode(each)), 600)
        lineage = after_compaction(lineage, each, messages=9, now=1.0)
    await Sessions(SealedStore(store, sealer, 600), Memory()).lineages.save("tag", RECORD, lineage)
    session = Session(id="a" * 64, label="", model="m", seen=0.0, record=("tag", digests[-1]))
    store.asked = 0
    sessions = Sessions(SealedStore(store, sealer, 600), Memory())
    found = (await records.export_session(sessions, session, NAME, "mask")).records
    assert [record.digest for record in found] == digests[::-1]
    assert store.asked == 5, "two of them for what was undone"


def test_a_record_without_content_has_nothing_of_the_conversation_in_it() -> None:
    told = structs.replace(
        RECORD,
        reports=(Report("hook", "the content", 1),),
        rules=(RuleFile("AGENTS.md", "the content", 1),),
        steps=(BrowserStep(1, memory="the content"),),
        pins=(Pin("mark", "key", "the content", 1, "the content"),),
    )
    assert "the content" not in repr(records.without_content(told))
