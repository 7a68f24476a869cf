"""What would be done with a request that somebody pastes, under one policy or two; nothing is sent, nothing stored."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import msgspec

from proxy.admin import chart
from proxy.admin.chart import Cell
from proxy.admin.opened import Opened
from proxy.callers.tenants import Caller
from proxy.dialects.table import CHAT, written_in
from proxy.engine.case import case_of
from proxy.engine.explanation import Explanation, MessageFate
from proxy.errors import InvalidRequestError
from proxy.observing.message_fates import SentMessage
from proxy.server.head import RequestHead

# Bytes that are read; in a form they are percent-encoded.
MOST_EXPLAINED = 16 * 1024 * 1024
_MOST_POLICIES = 2
_EXAMPLE_ROUNDS = 24
_EXAMPLE_LINE = "2026-11-22 10:46:02 INFO worker 7 took job 4711 of queue invoices, 3 left, none failed.\n"


class Asked(msgspec.Struct, frozen=True):
    """What programs send. policies: names, the tenant's own where there is none."""

    body: msgspec.Raw
    policies: list[str] = []
    tenant: str = ""


class Run(msgspec.Struct, frozen=True):
    """Messages side by side of which the same becomes, for the same reason. tokens, after: as received, as sent."""

    first: int
    last: int
    what: str
    number: int
    tokens: int
    after: int
    fate: str
    why: str


class Explained(msgspec.Struct, frozen=True):
    """What one policy would do with the request."""

    policy: str
    sentence: str
    explanation: Explanation
    cells: list[Cell]
    runs: list[Run]


async def explain(opened: Opened, caller: Caller, body: bytes, policies: Sequence[str]) -> list[Explained]:
    """Under each of these policies, two at most; the tenant's own where none is named. Raises InvalidRequestError."""
    known, engine, router = opened.config.policies, opened.engine, opened.active().router
    names = [*dict.fromkeys(policies or [caller.policy_name])][:_MOST_POLICIES]
    if unknown := [name for name in names if name not in known]:
        raise InvalidRequestError(f"No policy is called {unknown[0]}.", param="policies")
    dialect = written_in(body) or CHAT
    request = await engine.reader.read(body, caller.scope, router.encoding, dialect)
    if request is None:
        raise InvalidRequestError("This is no request of /v1/chat/completions, /v1/responses or /v1/messages.")
    head = RequestHead("POST", "/", []).asking(dialect)
    found = []
    for name in names:
        under = replace(caller, policy_name=name, policy=known[name])
        case = case_of(head, router, under, under.policy.mode, request)
        found.append(_explained(await engine.explainer.explain(case, request)))
    return found


def _explained(explanation: Explanation) -> Explained:
    messages = [
        SentMessage(fate.index, fate.role, fate.tool or "", fate.tokens, fate.fate, fate.tokens_after)
        for fate in explanation.messages
    ]
    return Explained(
        explanation.policy, sentence(explanation), explanation, chart.strip(messages), [*_runs(explanation.messages)]
    )


def sentence(explanation: Explanation) -> str:
    """What would be sent of what came."""
    window = explanation.window
    room = f", the window being {window.tokens:,}" if window else ", the window being unknown"
    sent = f"{'at most ' if explanation.cut else ''}{explanation.tokens_sent:,}"
    return f"{explanation.tokens_received:,} tokens{room}; {sent} would be sent."


def _runs(messages: Sequence[MessageFate]) -> Iterator[Run]:
    for (fate, reason), alike in groupby(messages, key=lambda message: (message.fate, message.why)):
        run = [*alike]
        yield Run(
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
    """A request that does not fit its model: an agent that has read many logs."""
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
