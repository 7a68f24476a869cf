"""Carrying out a compaction: every way a summarizer can fail, many callers at once, several replicas on one store."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from io import BytesIO

import msgspec
import pytest

from policies.record.record import VERSION, Segment
from policies.settings import BisectSettings, PolicySettings, SummarizerSettings
from proxy.compaction.job import Job
from proxy.compaction.record_builder import CompactionError
from proxy.models.tokenizer import DEFAULT_ENCODING
from proxy.sessions.record_store import RecordStore, place_key
from proxy.sessions.stores import CircuitBreaker, Sealer, StoreError
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import SealedStore
from proxy.telemetry.events import CompactionEnded, CompactionStarted, Event, Note, SummarizerCalled
from tests.support.compacting import GOOD, HEADINGS, OVERFLOW, TOKENIZER, Model, completion, error, job, replica
from tests.support.conversations import Json

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("R0 2.2 view", "R0 9.2 valid", "R1 2.3 before", "R1 4.1 text", "R3 4.1 compact", "R4 2 rows")
async def test_a_summary_is_written_validated_stored_and_found_again() -> None:
    model = Model()
    async with replica(model) as one:
        work = await job(one.target())
        record = await one.compactor.checkpoint(work)
        assert "the task goes on as the user asked for it" in record.text
        assert "Never touch config/prod.yaml." not in record.text  # it is the anchor, and stands behind the record
        assert record.making.algorithm == "single"
        assert record.making.model == "gpt-4o"
        assert await one.records.find(work.plan_input.chain, [work.plan.cut.position]) == record
        assert await one.compactor.checkpoint(work) == record
    assert len(model.asked) == 1


FAILURES = {
    "empty": (completion(""), "summarizer_invalid"),
    "no content": (completion(None), "summarizer_invalid"),
    "cut off": (completion(GOOD, "length"), "summarizer_invalid"),
    "no finish reason": (completion(GOOD, None), "summarizer_invalid"),
    "a tool call": (completion(GOOD, "stop", tool_calls=[{"id": "x"}]), "summarizer_invalid"),
    "a refusal": (completion("I'm sorry, I can't do that."), "summarizer_invalid"),
    "an error text with status 200": (completion("Error: internal"), "summarizer_invalid"),
    "HTML": ((200, b"<html>busy</html>"), "summarizer_transient"),
    "no choices": ((200, b'{"choices": []}'), "summarizer_transient"),
    "thinking only": (completion("<think>hm"), "summarizer_invalid"),
    "going on with the task": (completion("Now I will open the next file."), "summarizer_invalid"),
    "far too long": (completion(GOOD * 40), "summarizer_invalid"),
    "no headings": (completion("All went well. " * 20), "summarizer_invalid"),
    "401": (error(401), "summarizer_refused"),
    "402": (error(402), "summarizer_refused"),
    "403": (error(403), "summarizer_refused"),
    "404": (error(404), "summarizer_refused"),
    "429": (error(429), "summarizer_transient"),
    "500": (error(500), "summarizer_transient"),
    "a redirect": ((302, b""), "summarizer_refused"),
}


@pytest.mark.requirement("R3 6.1 summary")
@pytest.mark.parametrize(("answer", "reason"), FAILURES.values(), ids=FAILURES.keys())
async def test_a_failing_summarizer_is_never_stored_and_never_needed(answer: tuple[int, bytes], reason: str) -> None:
    async with replica(Model(lambda _: answer)) as one:
        optional = await job(one.target())
        with pytest.raises(CompactionError, match=reason):
            await one.compactor.checkpoint(optional)
        assert await one.records.find(optional.plan_input.chain, [optional.plan.cut.position]) is None
        record = await one.compactor.checkpoint(replace(optional, plan=replace(optional.plan, must=True)))
        assert record.making.algorithm == "deterministic"
        assert "bash({}) -> says: " in record.text


async def test_a_failing_summarizer_is_left_alone_for_a_while() -> None:
    now = 1e9
    model = Model(lambda _: error(500))
    async with replica(model, clock=lambda: now) as one:
        work = await job(one.target())
        for _ in range(5):
            with pytest.raises(CompactionError):
                await one.compactor.checkpoint(work)
        assert len(model.asked) == 2  # one try and its retry
        now += 61
        model.answer = lambda _: completion(GOOD)
        assert (await one.compactor.checkpoint(work)).making.algorithm == "single"


async def test_an_unusable_answer_gets_one_reminder_with_its_reason() -> None:
    answers = iter([completion("no headings here"), completion(GOOD)])
    model = Model(lambda _: next(answers))
    async with replica(model) as one:
        record = await one.compactor.checkpoint(await job(one.target()))
    assert record.making.algorithm == "single"
    assert "it has 0 of the 9 sections" in str(model.asked[1]["messages"])


async def test_a_summarizer_that_never_answers_is_given_up_at_the_deadline() -> None:
    policy = PolicySettings(summarizer=SummarizerSettings(timeout=0.2))
    gate = asyncio.Event()
    async with replica(Model(gate=gate)) as one:
        with pytest.raises(CompactionError, match="summarizer_timeout"):
            await one.compactor.checkpoint(await job(one.target(), policy=policy))
        gate.set()


def is_aligned(request: Json) -> bool:
    """Return True if the question stands at the end of the session's own prompt."""
    return "Stop the work here" in str(request["messages"])


@pytest.mark.parametrize(
    "failure", [error(500), error(429), error(408), (502, b""), (200, b"<html>busy</html>")], ids=str
)
async def test_one_transient_error_leaves_the_aligned_form_in_use(failure: tuple[int, bytes]) -> None:
    now, answers = 1e9, [failure, failure]
    model, log = Model(lambda _: answers.pop() if answers else completion(GOOD)), BytesIO()
    async with replica(model, clock=lambda: now, log=log) as one:
        work = await job(replace(one.target(window=100_000), name="elsewhere"))
        with pytest.raises(CompactionError, match="summarizer_transient"):
            await one.compactor.checkpoint(work)
        now += 61
        await one.compactor.checkpoint(work)
    assert [is_aligned(request) for request in model.asked] == [True, True, True]
    paused = [
        line for line in map(msgspec.json.decode, log.getvalue().splitlines()) if line["event"] == "summarizer_paused"
    ]
    assert [(line["kind"], line["seconds"]) for line in paused] == [("transient", 60.0)]


async def test_a_plain_question_follows_where_the_aligned_form_alone_fails_again_and_again() -> None:
    now = 1e9
    model = Model(lambda request: error(500) if is_aligned(request) else completion(GOOD))
    async with replica(model, clock=lambda: now) as one:
        work = await job(replace(one.target(window=100_000), name="elsewhere"))
        for pause in (61, 301):
            with pytest.raises(CompactionError, match="summarizer_transient"):
                await one.compactor.checkpoint(work)
            now += pause
        await one.compactor.checkpoint(work)
    assert [is_aligned(request) for request in model.asked] == [True] * 4 + [False]


@pytest.mark.parametrize("is_cut_off_by", ["deadline", "client"])
async def test_a_call_that_is_cut_off_says_by_what_and_pauses_for_a_deadline_alone(is_cut_off_by: str) -> None:
    is_late = is_cut_off_by == "deadline"
    policy = PolicySettings(summarizer=SummarizerSettings(timeout=0.2 if is_late else 60))
    model, events = Model(gate=(gate := asyncio.Event())), list[Event]()
    async with replica(model) as one:
        one.summarizer._observe = events.append
        target = replace(one.target(window=100_000), name="elsewhere")
        making = asyncio.create_task(one.builder.build(await job(target, policy=policy)))
        while not model.asked:  # noqa: ASYNC110 - the other side of a socket sets no event here
            await asyncio.sleep(0)
        if not is_late:
            making.cancel()
        with suppress(CompactionError, asyncio.CancelledError):
            await making
        gate.set()
        assert one.summarizer.is_cooling_down(target) == is_late
        assert one.summarizer.is_cooling_down(target, is_aligned=True) == is_late
    called = [event for event in events if isinstance(event, SummarizerCalled)]
    paused = [event for event in events if isinstance(event, Note)]
    assert [event.result for event in called] == ["timeout" if is_late else "cancelled"]
    assert [event.fields["kind"] for event in paused] == (["transient", "timeout"] if is_late else [])


@pytest.mark.requirement("R1 2.2", "R1 4.1 parts", "R1 4.6 algorithm", "R1 9.2")
async def test_an_overflow_is_bisected_and_merged() -> None:
    def small(request: Json) -> tuple[int, bytes]:
        return OVERFLOW if len(str(request["messages"])) > 12_000 else completion(GOOD)

    async with replica(Model(small)) as one:
        record = await one.compactor.checkpoint(await job(one.target(), number=80))
    assert record.making.algorithm == "bisect_v1"
    assert record.making.chunk_count > 1
    assert record.making.calls <= 16


async def test_a_merge_of_short_parts_may_be_as_long_as_its_target() -> None:
    """Parts that are short already leave less than half of them no room for what each of them says."""
    more = "- the task goes on as the user asked for it, and each of the parts had something of its own to say of that"
    longer = "\n".join(f"## {heading}\n{more}" for heading in HEADINGS)

    def small(request: Json) -> tuple[int, bytes]:
        asked = str(request["messages"])
        if len(asked) > 34_000:
            return error(400, "The prompt is too long", "context_length_exceeded")
        return completion(longer if "You merge" in asked else GOOD)

    model = Model(small)
    async with replica(model) as one:
        record = await one.compactor.checkpoint(await job(one.target(), number=80))
    (merge,) = [asked for asked in model.asked if "You merge" in str(asked["messages"])]
    source = TOKENIZER.count(str(merge["messages"][1]["content"]), DEFAULT_ENCODING)
    assert source / 2 < TOKENIZER.count(longer, DEFAULT_ENCODING) < 400
    assert record.making.algorithm == "bisect_v1"


async def test_a_known_window_needs_no_overflow() -> None:
    model = Model()
    async with replica(model) as one:
        record = await one.compactor.checkpoint(await job(one.target(window=4_000), number=80))
    assert record.making.algorithm == "bisect_v1"
    for request in model.asked:
        prompt = sum(TOKENIZER.count(message["content"], DEFAULT_ENCODING) for message in request["messages"])
        assert prompt + request["max_tokens"] < 4_000


@pytest.mark.requirement("R1 5.3")
async def test_another_error_during_a_bisection_ends_it() -> None:
    calls = 0

    def fail_second(_: Json) -> tuple[int, bytes]:
        nonlocal calls
        calls += 1
        return OVERFLOW if calls == 1 else error(401)

    async with replica(Model(fail_second)) as one:
        with pytest.raises(CompactionError, match="summarizer_refused"):
            await one.compactor.checkpoint(await job(one.target(), number=80))
    assert calls <= 9  # the parts that were already under way side by side


async def test_the_parts_of_a_failed_bisection_are_not_paid_for_again() -> None:
    merging = True

    def no_merge(request: Json) -> tuple[int, bytes]:
        return error(403) if merging and "You merge" in str(request["messages"]) else completion(GOOD)

    now = 1e9
    model = Model(no_merge)
    async with replica(model, clock=lambda: now) as one:
        work = await job(one.target(window=4_000), number=80)
        with pytest.raises(CompactionError):
            await one.compactor.checkpoint(work)
        parts = len(model.asked) - 1
        merging = False
        now += 3_600
        await one.compactor.checkpoint(work)
    assert parts > 1
    assert len(model.asked) == parts + 2


async def test_a_part_is_found_by_its_content_from_other_conversations_until_its_own_is_erased() -> None:
    store = MemoryStore()
    records = RecordStore(SealedStore(store, Sealer(None), 3600.0))
    await records.keep_part("a", b"caller, model and prompt", "what it said")
    assert await records.recall_part("b", b"caller, model and prompt") == "what it said"
    assert await records.recall_part("c", b"another caller, model and prompt") is None
    await store.erase("a", b"mark", 3600.0)
    assert await records.recall_part("a", b"caller, model and prompt") is not None, "from the copy of b"
    await store.erase("b", b"mark", 3600.0)
    assert await records.recall_part("c", b"caller, model and prompt") is None


async def test_a_part_that_is_no_text_is_recalled_as_far_as_it_is_one() -> None:
    store, sealer, content = MemoryStore(), Sealer(None), b"caller, model and prompt"
    records, name = RecordStore(SealedStore(store, sealer, 3600.0)), hashlib.sha256(content).hexdigest()
    for tag in (b"a", b"\xff"):
        note, key = f"index:part:{name}", f"part:{{{tag.decode('utf-8', 'replace')}}}:{name}"
        await store.put(note, sealer.seal(note, tag), 3600.0)
        await store.put(key, sealer.seal(key, b"half of it \xff"), 3600.0)
        assert await records.recall_part("b", content) == "half of it \ufffd"
        await store.erase("b", b"mark", 3600.0)
    await records.keep_part("c", content, "half \ud83d of it")
    assert await records.recall_part("c", content) == "half ? of it"


@pytest.mark.requirement("R1 3 trace", "R1 4.1 parts", "R1 5.2 end")
async def test_bisection_may_be_limited() -> None:
    policy = PolicySettings(bisect=BisectSettings(max_calls=3))
    async with replica(model := Model()) as one:
        record = await one.compactor.checkpoint(await job(one.target(window=3_000), number=120, policy=policy))
    assert len(model.asked) <= 3
    assert record.making.truncated


async def test_twenty_callers_at_once_cost_one_call() -> None:
    model = Model(gate=asyncio.Event())
    async with replica(model) as one:
        work = await job(one.target())
        tasks = [asyncio.create_task(one.compactor.checkpoint(work)) for _ in range(20)]
        while not model.asked:  # noqa: ASYNC110 - the model's server sets no event
            await asyncio.sleep(0)
        assert model.gate is not None
        model.gate.set()
        records = await asyncio.gather(*tasks)
    assert len(model.asked) == 1
    assert all(record == records[0] for record in records)


async def test_two_replicas_share_one_call_and_send_the_same_bytes() -> None:
    store = MemoryStore()
    model = Model(gate=asyncio.Event())
    async with replica(model, store) as one, replica(Model(), store) as other:
        first = asyncio.create_task(one.compactor.checkpoint(await job(one.target())))
        while not model.asked:  # noqa: ASYNC110 - the model's server sets no event
            await asyncio.sleep(0)
        second = asyncio.create_task(other.compactor.checkpoint(await job(other.target())))
        assert model.gate is not None
        model.gate.set()
        assert (await first).text == (await second).text
    assert len(model.asked) == 1


async def test_a_waiter_gives_up_after_join_wait_and_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.compaction.job.Job.JOIN_WAIT", 0.05)
    store = MemoryStore()
    async with replica(Model(), store) as one:
        work = await job(one.target())
        await store.lock(f"lock:{place_key(work.plan_input.chain, work.plan.cut.position)}", "a dead replica", 60)
        with pytest.raises(CompactionError, match="pending"):
            await one.compactor.checkpoint(work)


async def test_a_waiter_takes_over_when_the_lock_is_given_up_without_a_record() -> None:
    refused = asyncio.Event()

    class Telling(MemoryStore):
        async def lock(self, key: str, token: str, ttl: float) -> bool:
            taken = await super().lock(key, token, ttl)
            if not taken:
                refused.set()
            return taken

    store = Telling()
    async with replica(model := Model(), store) as one, asyncio.timeout(30):
        work = await job(one.target(), must=True)
        lock = f"lock:{place_key(work.plan_input.chain, work.plan.cut.position)}"
        await store.lock(lock, "a replica whose client leaves", 60)
        waiting = asyncio.create_task(one.compactor.checkpoint(work))
        await refused.wait()
        await store.lock(lock, "a replica whose client leaves", 0)
        assert (await waiting).making.algorithm == "single"
    assert len(model.asked) == 1


@pytest.mark.requirement("R4 3.1 id")
async def test_the_loser_of_a_race_sends_the_winners_text() -> None:
    store = MemoryStore()
    async with replica(Model(), store) as one, replica(Model(), store) as other:
        work = await job(None, must=True)
        mine = await one.compactor.checkpoint(work)
        late = msgspec.structs.replace(mine, text="written later")
        assert await other.records.publish(work.plan_input.chain, late) == mine


async def test_a_record_of_another_prefix_is_kept_nowhere() -> None:
    async with replica(Model()) as one, replica(Model(), store := MemoryStore()) as other:
        work = await job(None, must=True)
        strange = msgspec.structs.replace(await one.compactor.checkpoint(work), digest="00" * 32)
        assert await other.records.publish(work.plan_input.chain, strange) == strange
        assert other.records.recall(work.plan_input.chain, [strange.covered]) is None
        assert await store.get_many([place_key(work.plan_input.chain, strange.covered)]) == [None]


async def test_a_deterministic_record_needs_no_model_and_no_lock() -> None:
    model = Model()
    async with replica(model) as one:
        record = await one.compactor.checkpoint(await job(None))
    assert record.making.algorithm == "deterministic"
    assert model.asked == []


async def test_a_tenants_daily_tokens_bound_what_summaries_cost() -> None:
    async with replica(model := Model()) as one:
        first = await job(one.target(), summary_tokens_per_day=100)
        record = await one.compactor.checkpoint(first)
        assert record.making.algorithm == "single"
        second = await job(one.target(), number=50, parent=record, summary_tokens_per_day=100, must=True)
        assert (await one.compactor.checkpoint(second)).making.algorithm == "deterministic"
    assert len(model.asked) == 1


@pytest.mark.requirement("R0 3.4", "R0 6.1", "R2 Solution fetch", "R2 Effect 2")
async def test_the_next_generation_continues_from_the_last() -> None:
    async with replica(model := Model()) as one:
        first = await one.compactor.checkpoint(await job(one.target(), number=40))
        later = await job(one.target(), number=80, parent=first)
        second = await one.compactor.checkpoint(later)
    assert second.generation == 2
    assert second.parent == first.digest
    asked = str(model.asked[1]["messages"])
    assert "<previous_summary>" in asked
    assert "<timeline>" in asked
    assert "result 0 " not in asked  # only the newly dropped span


def record_key(work: Job) -> str:
    """Return where the record of a job is stored."""
    return f"cp:{{{work.plan_input.chain.tag}}}:{VERSION}:{work.digest.hex()}"


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: b"",
        lambda value: value[:-3],
        lambda value: b"x" + value[1:],
        lambda value: value[:40] + b"\0" + value[41:],
    ],
)
async def test_a_damaged_record_is_a_miss(damage: Callable[[bytes], bytes]) -> None:
    store = MemoryStore()
    async with replica(Model(), store) as one:
        work = await job(None)
        await one.compactor.checkpoint(work)
        place, key = place_key(work.plan_input.chain, work.plan.cut.position), record_key(work)
        at, value = await store.get_many([place, key])
        assert at is not None
        assert value is not None
        broken = MemoryStore()
        await broken.put(place, at, 60)
        await broken.put(key, damage(value), 60)
        fresh = RecordStore(SealedStore(broken, Sealer(None), 60))
        assert await fresh.find(work.plan_input.chain, [work.plan.cut.position]) is None


@pytest.mark.requirement("R0 10.2", "R0 10.3", "R1 4.6 covered", "R1 8", "R4 3.3")
@pytest.mark.parametrize("change", [{"version": VERSION + 1}, {"version": VERSION - 1}, {"digest": "ff"}])
async def test_a_record_that_is_not_of_this_prefix_or_version_is_a_miss(change: dict[str, object]) -> None:
    store = MemoryStore()
    async with replica(Model(), store) as one:
        work = await job(None)
        record = msgspec.structs.replace(await one.compactor.checkpoint(work), **change)
        key = record_key(work)
        await store.put(key, Sealer(None).seal(key, msgspec.json.encode(record)), 60)
        assert (
            await RecordStore(SealedStore(store, Sealer(None), 60)).find(
                work.plan_input.chain, [work.plan.cut.position]
            )
            is None
        )


@pytest.mark.requirement("R4 3.1 newest")
async def test_the_newest_checkpoint_is_found_in_two_round_trips() -> None:
    class Counting(MemoryStore):
        calls = 0

        async def get_many(self, keys: object) -> list[bytes | None]:
            self.calls += 1
            return await super().get_many(keys)  # type: ignore[arg-type]

    store = Counting()
    async with replica(Model(), store) as one:
        older = await job(None, number=40)
        newer = await job(None, number=80, parent=await one.compactor.checkpoint(older))
        await one.compactor.checkpoint(newer)
        fresh = RecordStore(SealedStore(store, Sealer(None), 60))
        store.calls = 0
        found = await fresh.find(newer.plan_input.chain, range(1, len(newer.plan_input.chain.digests)))
        assert found is not None
        assert found.covered == newer.plan.cut.position
        assert store.calls == 2
        assert fresh.recall(newer.plan_input.chain, range(1, len(newer.plan_input.chain.digests))) == found


async def test_a_store_that_is_down_costs_nothing_but_memory() -> None:
    class Failing(MemoryStore):
        async def get_many(self, keys: object) -> list[bytes | None]:
            raise StoreError("down")

        async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
            raise StoreError("down")

        async def lock(self, key: str, token: str, ttl: float) -> bool:
            raise StoreError("down")

    async with replica(model := Model(), CircuitBreaker(Failing(), lambda: 0.0)) as one:
        work = await job(one.target())
        record = await one.compactor.checkpoint(work)
        assert one.records.recall(work.plan_input.chain, [work.plan.cut.position]) == record
    assert len(model.asked) == 1


@pytest.mark.requirement("R2 Switch 2")
@pytest.mark.parametrize("insights", [True, False])
async def test_insights_are_shown_to_the_summarizer_unless_a_policy_says_no(insights: bool) -> None:
    model = Model()
    policy = PolicySettings(summarizer=SummarizerSettings(insights=insights))
    async with replica(model) as one:
        first = await one.compactor.checkpoint(await job(None, must=True))
        told = (Segment("Looked at the modules.", ("memory is the slow one",)),)
        parent = msgspec.structs.replace(first, segments=told)
        await one.compactor.checkpoint(await job(one.target(), number=80, parent=parent, policy=policy))
    (question,) = model.asked
    assert "- Looked at the modules." in str(question)
    assert ("memory is the slow one" in str(question)) == insights


@pytest.mark.parametrize("told", ["cancelled", "internal_error"])
async def test_the_end_is_told_also_of_what_is_cancelled_or_fails_by_our_fault(
    told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def fails(*_: object) -> None:
        asked.set()
        if told == "internal_error":
            raise ZeroDivisionError
        await asyncio.Event().wait()
        raise AssertionError

    log = BytesIO()
    async with replica(Model(), log=log) as one:
        monkeypatch.setattr(one.summarizer, "ask", fails)
        making = asyncio.create_task(one.builder.build(await job(one.target())))
        await asked.wait()
        making.cancel()
        with suppress(asyncio.CancelledError, ZeroDivisionError):
            await making
    (line,) = map(msgspec.json.decode, log.getvalue().splitlines())
    assert (line["event"], line["result"]) == ("compaction", told)


@pytest.mark.requirement("R1 4.1 stream")
async def test_the_log_says_why_answers_were_refused_and_nothing_they_held() -> None:
    answers = iter([completion("a secret word " * 40), completion(GOOD, "secret, and (long)"), completion(GOOD)])
    log = BytesIO()
    async with replica(Model(lambda _: next(answers)), log=log) as one:
        with pytest.raises(CompactionError, match="summarizer_invalid"):
            await one.compactor.checkpoint(await job(one.target()))
        await one.compactor.checkpoint(await job(None))
    lines = map(msgspec.json.decode, log.getvalue().splitlines())
    refused, fine = (line for line in lines if line["event"] == "compaction")
    assert refused["refused"] == ["it has 0 of the 9 sections", "it was not finished (finish_reason unknown)"]
    assert "refused" not in fine
    assert b"secret" not in log.getvalue()


async def test_a_bisection_that_ran_into_its_own_bounds_is_no_fault_of_the_summarizer() -> None:
    policy = PolicySettings(bisect=BisectSettings(max_depth=1, min_messages=2))
    model = Model(lambda _: OVERFLOW)
    async with replica(model) as one:
        work = await job(one.target(), policy=policy)
        with pytest.raises(CompactionError, match="summarizer_bounded"):
            await one.compactor.checkpoint(work)
        assert not one.summarizer.is_cooling_down(one.target())


@pytest.mark.requirement("R1 4.1 start")
@pytest.mark.parametrize("answer", [completion(GOOD), error(500)], ids=["made", "failed"])
async def test_the_beginning_of_a_compaction_is_told_before_its_end(answer: tuple[int, bytes]) -> None:
    told: list[Event] = []
    async with replica(Model(lambda _: answer)) as one:
        work = await job(one.target())
        with suppress(CompactionError):
            await replace(one.builder, _observe=told.append).build(work)
    started, *_, ended = told
    assert isinstance(started, CompactionStarted)
    assert isinstance(ended, CompactionEnded)
    assert (started.session, started.trigger, started.covered) == (ended.session, ended.trigger, ended.covered)
    assert (started.model, started.tokens_before) == ("gpt-4o", work.plan.tokens_before)
