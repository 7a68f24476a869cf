"""The prompt of a request: the client's bytes, or a rewritten copy of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from policies.conversation.conversation import MessageIndex
from policies.decision.assemble import SHAPES, Shape, assemble
from policies.decision.plan import ActiveCheckpoint, tokens_with
from policies.record.record import Record
from proxy.compaction.pins import KeptPins
from proxy.compaction.plan_input import Outcome, PlanInput, RoutedRequest
from proxy.compaction.prompt_view import PromptView
from proxy.dialects import json_array
from proxy.dialects.cache_marks import may_be_cached
from proxy.dialects.reader import CountedRequest
from proxy.dialects.surrogates import readable


@dataclass(frozen=True, slots=True)
class Copy:
    """The differences between a rewritten request and the client's.

    covered:  the number of messages in the body that are left out.
    text:     the text that replaces them; None for nothing.
    replaced: message index -> other bytes.
    """

    covered: int
    text: str | None
    replaced: dict[MessageIndex, bytes]


class Prompt(msgspec.Struct, frozen=True):
    """A prompt to send: its body, its estimated tokens, and the reason for its form.

    view:       the conversation as it is sent; None if the plan needed none.
    copy:       the differences from the client's request; None if its own bytes are sent.
    max_output: the lowered output limit; None for the client's own.
    warning:    a problem of the client's requests that compaction cannot solve; None without one.
    pins:       the pinned texts in its body; None if there are none, or if the body is the client's own.
    planned:    seconds until the plan was made. waited: seconds spent waiting for a record.
    """

    body: bytes
    tokens: int
    outcome: Outcome
    reason: str
    record: Record | None = None
    view: PromptView | None = None
    copy: Copy | None = None
    max_output: int | None = None
    warning: str | None = None
    pins: KeptPins | None = None
    planned: float = 0.0
    waited: float = 0.0


def untouched_prompt(request: CountedRequest, outcome: Outcome, reason: str, view: PromptView | None = None) -> Prompt:
    """Return the request as the client sent it, from its separator on if it has one."""
    if request.dropped_tokens and outcome == "none" and not request.is_ours:
        outcome, reason = "applied", "separator"
    return Prompt(request.body, request.tokens, outcome, reason, view=view)


def build_prompt(
    plan_input: PlanInput,
    view: PromptView,
    record: Record | None,
    outcome: Outcome,
    reason: str,
    most: int | None = None,
) -> Prompt:
    """Return the request with a record in place of its oldest part, and with the changed messages of a view.

    most: the most tokens with restored texts; None for all that fits.
    """
    view = _view_that_fits(plan_input, view, record, most)
    if record is None and not view.replaced:
        return untouched_prompt(plan_input.request, outcome, reason, view)
    tokens = tokens_with(view.conversation, active_checkpoint(record))
    copy = Copy(record.covered if record else 0, record.text if record else None, view.replaced)
    return Prompt(body_of(plan_input, copy, plan_input.experience.shape), tokens, outcome, reason, record, view, copy)


def _view_that_fits(plan_input: PlanInput, view: PromptView, record: Record | None, most: int | None) -> PromptView:
    """Return the view with as many of the restored texts as there is room for."""
    if most is None:
        most = plan_input.limits.real.usable if plan_input.limits.real is not None else None
    while (
        most is not None
        and view.smaller is not None
        and tokens_with(view.conversation, active_checkpoint(record)) > most
    ):
        view = view.smaller
    return view


def reshaped_prompts(plan_input: PlanInput, prompt: Prompt) -> Iterator[tuple[Shape, Prompt]]:
    """Yield the prompt in the other shapes of its record, each with a different body."""
    if prompt.copy is None:
        return
    bodies = {prompt.body}
    for shape in SHAPES:
        body = with_output(plan_input, body_of(plan_input, prompt.copy, shape), prompt.max_output)
        if body not in bodies:
            bodies.add(body)
            yield shape, replace(prompt, body=body)


def with_output(plan_input: PlanInput, body: bytes, limit: int | None) -> bytes:
    """Return a body with this output limit, or unchanged if it is None."""
    if limit is None:
        return body
    return plan_input.request.dialect.with_output(body, plan_input.request.settings.output_key, limit)


def body_of(plan_input: PlanInput, copy: Copy, shape: Shape) -> bytes:
    """Return the body of a rewritten request. With a record it may get cache marks (`adds_marks`)."""
    request = plan_input.request
    if copy.text is None:
        return request.dialect.rebuild(request.body, request.parsed, plan_input.conversation.indexes, copy.replaced)
    items = assemble(plan_input.conversation, copy.covered, copy.text, shape)
    return request.dialect.rebuild(request.body, request.parsed, items, copy.replaced, is_marked=adds_marks(plan_input))


def adds_marks(plan_input: PlanInput) -> bool:
    """Return True if a prompt with a record gets cache marks: the client sets none, and its provider needs them."""
    is_allowed = plan_input.caller.policy.cache_marks == "on" and plan_input.experience.takes_marks
    is_possible = plan_input.request.dialect.breakpoints is not None
    return is_allowed and is_possible and not may_be_cached(plan_input.request.body, plan_input.request.settings.model)


def unmarked_prompt(plan_input: PlanInput, prompt: Prompt) -> Prompt | None:
    """Return the prompt without the proxy's cache marks; None if it has none."""
    if prompt.copy is None or prompt.copy.text is None or not adds_marks(plan_input):
        return None
    plan_input = replace(plan_input, experience=replace(plan_input.experience, takes_marks=False))
    body = with_output(plan_input, body_of(plan_input, prompt.copy, plan_input.experience.shape), prompt.max_output)
    return replace(prompt, body=body)


def unsealed_prompt(plan_input: RoutedRequest, prompt: Prompt) -> Prompt | None:
    """Return the prompt without sealed reasoning; None if it has none."""
    dialect = plan_input.request.dialect
    change = dialect.without_sealed
    if change is None or not plan_input.request.history.is_signed:
        return None
    parsed = json_array.parse(readable(prompt.body), dialect.array)
    if parsed is None:
        return None
    raws = [prompt.body[slice(*span)] for span in parsed.spans]
    remaining = [raw for raw in (dialect.rewrite_items(raw, change) for raw in raws) if raw]
    if len(remaining) == len(raws) and all(map(bytes.__eq__, remaining, raws)):
        return None
    outcome: Outcome = "applied" if prompt.outcome == "none" else prompt.outcome
    body = json_array.rebuild(prompt.body, parsed, remaining)
    return replace(prompt, body=body, outcome=outcome, warning="reasoning_removed")


def active_checkpoint(record: Record | None) -> ActiveCheckpoint | None:
    """Return the checkpoint of a record as the policies see it."""
    return None if record is None else ActiveCheckpoint(record.covered, record.text_tokens)
