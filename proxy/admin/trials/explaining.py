"""Explain a pasted request under one policy or two. Nothing is sent, and nothing is stored."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import msgspec
from msgspec import structs

from proxy.admin import chart, why
from proxy.admin.access import Access, Visitor
from proxy.admin.chart import Cell
from proxy.admin.context import AdminContext, named_tenant, under
from proxy.admin.roles import OPERATORS
from proxy.admin.sessions import records
from proxy.admin.sessions.asking import ask_store
from proxy.admin.sessions.listing import ID_DIGITS
from proxy.admin.trials.turn import Turn
from proxy.callers.tenants import Caller
from proxy.compaction.explain.explainer import explain, preview_request
from proxy.compaction.explain.explanation import Explanation, MessageFate
from proxy.compaction.plan_input import PlanInput, plan_input_of_pasted
from proxy.compaction.record_builder import CompactionError
from proxy.dialects.reader import CountedRequest
from proxy.dialects.table import DEFAULT_DIALECT, dialect_of_body, shown_paths
from proxy.errors import InvalidRequestError, NotAllowedError, NotFoundError
from proxy.sessions.index import Target
from proxy.sessions.sessions import Sessions
from proxy.telemetry.events import note

# The maximum bytes of a question. In a form they are percent-encoded.
MOST_EXPLAINED = 16 * 1024 * 1024
_MOST_POLICIES = 2
# The scope of requests that continue no stored session. Nothing is stored in it, so they find nothing.
_NO_SCOPE = b"no session"
_EXAMPLE_ROUNDS = 24
_EXAMPLE_LINE = "2026-11-22 10:46:02 INFO worker 7 took job 4711 of queue invoices, 3 left, none failed.\n"


class Question(msgspec.Struct, frozen=True):
    """A question about a request.

    policies: names; the tenant's own if empty. session: label or id of the stored session that it continues; empty for
    none. ask: True to call the summarizer once, under the first policy.
    """

    body: msgspec.Raw
    policies: list[str] = []
    tenant: str = ""
    session: str = ""
    ask: bool = False


class MessageRun(msgspec.Struct, frozen=True):
    """Adjacent messages with the same fate for the same reason.

    tokens, after: received and sent.
    """

    first: int
    last: int
    what: str
    number: int
    tokens: int
    after: int
    fate: str
    why: str


class Explained(msgspec.Struct, frozen=True):
    """The explanation of the request under one policy."""

    policy: str
    sentence: str
    explanation: Explanation
    cells: list[Cell]
    runs: list[MessageRun]


class Made(msgspec.Struct, frozen=True):
    """The record that the request would get under a policy. It is not stored.

    record: None if there is none. why: the reason.
    """

    policy: str
    record: records.View | None
    why: str = ""


class ExplainAnswer(msgspec.Struct, frozen=True):
    """The answer to a question.

    session: the one whose records were used; None without a store. made: None if the summarizer was not called.
    """

    session: str | None
    explained: list[Explained]
    made: Made | None


class Explaining:
    """Explain requests that visitors paste."""

    def __init__(self, context: Callable[[], AdminContext], access: Access) -> None:
        """Create the trials over the running proxy."""
        self._find = context
        self._access = access
        self._asking = Turn("The summarizer is busy with another trial; try again later.")

    async def answer(self, visitor: Visitor, question: Question) -> ExplainAnswer:
        """Answer a question. Raises InvalidRequestError, NotFoundError, NotAllowedError and other ProxyErrors."""
        caller = named_tenant(question.tenant, visitor, self._find())
        self._check(visitor, caller, question)
        context = self._find()
        callers = [under(name, caller, context) for name in _names_in_question(question, caller)]
        request = await _read(context, caller, bytes(question.body))
        session = await _session_of(context, caller, question.session) if question.session else None
        router = context.active().router
        cases = [plan_input_of_pasted(router, each, each.policy.mode, request, session) for each in callers]
        if session is None:
            cases = [_without_records(case) for case in cases]
        explained = [_explained_view(await explain(context.engine, case, request)) for case in cases]
        if session is not None:
            self._emit(visitor, "session_explained", caller, session)
        trial_record = await self._summarize_trial(visitor, cases[0], session) if question.ask else None
        return ExplainAnswer(session.id[:ID_DIGITS] if session else None, explained, trial_record)

    def _check(self, visitor: Visitor, caller: Caller, question: Question) -> None:
        """Check access to content: stored records, and the paid text of a summarizer."""
        if question.ask and visitor.role not in OPERATORS:
            raise NotAllowedError("Calling a summarizer needs the admin token.", param="ask")
        if question.ask or question.session:
            self._access.check_content(visitor, caller.tenant)

    async def _summarize_trial(self, visitor: Visitor, case: PlanInput, session: Target | None) -> Made:
        """Return the record that the summarizer would make, without storing it."""
        engine, name = self._find().engine.read_only(), case.caller.policy_name
        with self._asking.take():
            job = (await preview_request(engine, case)).job
            if job is None:
                return Made(name, None, "No summary is due, so the summarizer was not called.")
            self._emit(visitor, "summarizer_asked", case.caller, session)
            try:
                record = await engine.builder.build(job)
            except CompactionError as error:
                return Made(name, None, why.reason(str(error)))
        return Made(name, await engine.workers.run(records.view_of, record, job.parent))

    def _emit(self, visitor: Visitor, action: str, caller: Caller, session: Target | None) -> None:
        name = session.id[:ID_DIGITS] if session else None
        self._find().engine.observe(note("admin", caller.tenant, name, who=visitor.role, what=action))


def _names_in_question(question: Question, caller: Caller) -> list[str]:
    return [*dict.fromkeys(question.policies or [caller.policy_name])][:_MOST_POLICIES]


async def _read(context: AdminContext, caller: Caller, body: bytes) -> CountedRequest:
    router, dialect = context.active().router, dialect_of_body(body) or DEFAULT_DIALECT
    request = await context.engine.read(body, caller, router, dialect)
    if request is None:
        *paths, last_path = shown_paths()
        raise InvalidRequestError(f"This is not a request of {', '.join(paths)} or {last_path}.")
    return request


def _without_records(case: PlanInput) -> PlanInput:
    """Return the plan input of a request that finds no stored record. Facts learned of its model still apply."""
    caller = replace(case.caller, scope=_NO_SCOPE)
    return structs.replace(case, caller=caller, chain=structs.replace(case.chain, scope=_NO_SCOPE))


async def _session_of(context: AdminContext, caller: Caller, name: str) -> Target:
    """Return the stored session with this label, id, beginning of an id, or ID:LABEL."""
    targets = await ask_store(_find_some(context.engine.sessions, caller, name))
    if not targets:
        raise NotFoundError("No session of this tenant has this label or id.", param="session")
    if len(targets) > 1:
        raise InvalidRequestError("Several sessions have this name; name one as ID:LABEL.", param="session")
    return targets[0]


async def _find_some(sessions: Sessions, caller: Caller, name: str) -> list[Target]:
    """Return the sessions with this name, or some if there are several. Raises StoreError."""
    targets: list[Target] = []
    async for page in sessions.find_sessions(caller, name):
        targets += page
        if len(targets) > 1:
            break
    return targets


def _explained_view(explanation: Explanation) -> Explained:
    messages = [fate.sent_message for fate in explanation.messages]
    return Explained(
        explanation.policy, sentence(explanation), explanation, chart.strip(messages), [*_runs(explanation.messages)]
    )


def sentence(explanation: Explanation) -> str:
    """Return the sentence about the tokens that would be sent."""
    window = explanation.window
    room = f" of a window of {window.tokens:,}" if window else " (window unknown)"
    sent = f"{'at most ' if explanation.cut else ''}{explanation.tokens_sent:,}"
    return f"{explanation.tokens_received:,} tokens{room}; {sent} would be sent."


def _runs(messages: Sequence[MessageFate]) -> Iterator[MessageRun]:
    for (fate, reason), alike in groupby(messages, key=lambda message: (message.fate, message.why)):
        run = [*alike]
        yield MessageRun(
            run[0].index,
            run[-1].index,
            _what(run),
            len(run),
            sum(message.tokens for message in run),
            sum(message.tokens_after for message in run),
            fate,
            reason,
        )


def _what(run: Sequence[MessageFate]) -> str:
    roles = {message.role for message in run}
    if roles <= {"assistant", "tool"} and "tool" in roles and len(run) > 1:
        return "tool loop"
    return "conversation" if len(roles) > 1 else f"{run[0].role}{' messages' if len(run) > 1 else ''}"


def example() -> str:
    """Return an example request that does not fit its model: an agent that has read many logs."""
    messages: list[object] = [
        {"role": "system", "content": "You are a careful operations agent."},
        {"role": "user", "content": "Find out why invoices are late. Never restart worker 7."},
    ]
    for number in range(_EXAMPLE_ROUNDS):
        call = {"name": "read_log", "arguments": json.dumps({"path": f"/var/log/worker-{number}.log"})}
        messages += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"c{number}", "content": _EXAMPLE_LINE * 12},
        ]
    messages.append({"role": "user", "content": "What did you find?"})
    return json.dumps({"model": "gpt-4", "messages": messages}, indent=1)
