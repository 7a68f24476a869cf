"""One chat request with everything its draft depends on, and the draft itself: what is sent for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from policies.assembly import SHAPES, Item, Shape, assemble
from policies.budget import Budget, reserved_output, usable_input
from policies.chain import INSTRUCTIONS, prefix_digests, set_apart
from policies.conversation import Conversation
from policies.cuts import legal_cuts
from policies.experience import Experience
from policies.ladder import ESTIMATE_MARGIN, TARGETS
from policies.plan import Compact, Limits, Standing, limits_of, tokens_with
from policies.record.record import Record
from policies.trail import Resumed
from proxy.callers.session_label import mark_of, session_label
from proxy.callers.tenants import Caller
from proxy.dialects import json_array
from proxy.dialects.reader import ChatRequest
from proxy.engine.compactor import Job
from proxy.engine.cooler import Cooled
from proxy.engine.summarizer import SummaryTarget
from proxy.models.table import Window
from proxy.models.windows import Place, place_of
from proxy.records.checkpoints import hash_tag
from proxy.server.exchange import Exchange
from proxy.upstream.routes import Route, Router

_CALIBRATION_STEP = 0.25

Outcome = Literal["none", "applied", "reused", "cooled", "shadow", "bypass", "pending", "failed-open"]
Wish = Literal["off", "on", "shadow", "force"]


@dataclass(frozen=True, slots=True)
class Origin:
    """The conversation that a request goes on from, by its first link and by the digest of what ends at `cut`."""

    first: bytes
    cut: int
    digest: bytes
    resumed: Resumed


@dataclass(frozen=True)
class Case:
    """A counted request with everything its draft depends on."""

    request: ChatRequest
    caller: Caller
    route: Route
    router: Router
    wish: Wish
    label: str = ""
    """What the client calls its session; empty where it has no name for it."""
    link: bytes | None = None
    """The first link that holds for this session; None where nobody looked whether it was erased."""
    origin: Origin | None = None
    """Where it goes on from a record behind a beginning that is another now."""
    kin: str = ""
    """The tag of a conversation that ends alike, where no record holds for it; empty without one."""

    @cached_property
    def conversation(self) -> Conversation:
        """The request's messages as the policy sees them."""
        request, policy = self.request, self.caller.policy
        return Conversation(
            request.messages,
            request.tools_tokens,
            instructions_covered=policy.compress_system_messages,
            pinned=self.origin.resumed.changed if self.origin else (),
        )

    @cached_property
    def limits(self) -> Limits:
        return limits_of(
            self.usable_input(self.experience.calibration), self.caller.policy, self.conversation.fixed_tokens
        )

    def usable_input(self, calibration: float = 1.0) -> Budget | None:
        """What its model takes, None where the window is unknown; in real tokens, or with a calibration in ours."""
        window = self.route.window
        if window is None:
            return None
        return usable_input(
            window.tokens,
            self.request.max_output,
            exact=self.route.exact,
            calibration=calibration,
            of_prompt=window.of_prompt,
            longest_answer=self.longest_answer,
        )

    @property
    def reserved_output(self) -> int | None:
        """What is kept for the answer of a request that names a limit, where the rest of its limit can be lowered."""
        limit, window = self.request.max_output, self.route.window
        if limit is None or window is None or not self.may_lower_output:
            return limit
        return reserved_output(window.tokens, limit, self.longest_answer)

    @property
    def may_lower_output(self) -> bool:
        """Whether a limit for the output that does not fit is lowered before it is refused."""
        window = self.told_window
        return window is not None and not window.of_prompt and self.caller.policy.output_floor is not None

    @property
    def told_window(self) -> Window | None:
        """The window where the config or the upstream has told it; a table may be wrong."""
        window = self.route.window
        return None if window is None or window.source == "table" else window

    @cached_property
    def longest_answer(self) -> int | None:
        """That this session, else its model, gave lately; None where that is not known, and where the output that is
        asked for has to fit whole."""
        if self.request.max_output is not None and not self.may_lower_output:
            return None
        return self.router.longest_answer(self.place, self.session)

    @property
    def summary_target(self) -> SummaryTarget | None:
        return self.router.summary_target(self.caller, self.request, self.route)

    @cached_property
    def digests(self) -> list[bytes]:
        """Of the prefixes of the body. Records that cover instructions never meet requests that keep theirs."""
        return self.digests_under(self.link or labelled(self.first_link, self.mark))

    def digests_under(self, first: bytes) -> list[bytes]:
        """Of the same prefixes, as they would be named where this stands for the first link."""
        if self.conversation.instructions_covered:
            first = set_apart(first, INSTRUCTIONS)
        given = {1: first} | ({self.origin.cut: self.origin.digest} if self.origin else {})
        return prefix_digests(self.caller.scope, self.conversation.body, given)

    @property
    def tag(self) -> str:
        """Under which everything of the conversation is stored."""
        return hash_tag(self.digests[min(1, len(self.digests) - 1)])

    @cached_property
    def cuts(self) -> list[int]:
        return legal_cuts(self.conversation)

    def cut_at(self, digest: bytes) -> int | None:
        """The cut before which everything has this digest; None without one."""
        return next((cut for cut in self.cuts if self.digests[cut] == digest), None)

    @property
    def retries(self) -> int:
        """How often an overflow may be answered with a smaller request."""
        policy = self.caller.policy
        return min(policy.retry_on_overflow, policy.max_iterations, len(TARGETS))

    @cached_property
    def first_link(self) -> bytes:
        """Of the conversation's chain: names it, at the price of one message."""
        if self.origin is not None:
            return self.origin.first
        return prefix_digests(self.caller.scope, self.conversation.body[:1])[-1]

    @cached_property
    def mark(self) -> bytes:
        return mark_of(self.caller, self.label)

    @property
    def session(self) -> bytes:
        """The session's name: the conversation as it began, and the mark of its label."""
        return self.first_link + self.mark

    @property
    def lineage(self) -> str:
        """The name of the conversation for people."""
        return self.first_link.hex()[:16]

    @property
    def is_let_through(self) -> bool:
        """Whether it goes out as it came, whatever would be done with it."""
        return self.request.passthrough is not None or self.wish in ("off", "shadow")

    @property
    def experience(self) -> Experience:
        """What was learned of this model at this upstream, up to now."""
        return self.router.experience(self.place)

    def steady_budget(self, window: int) -> Budget:
        """What a window takes, whatever the request asks for and the last answers were: for what must stay as it is."""
        calibration = self.experience.calibration // _CALIBRATION_STEP * _CALIBRATION_STEP
        budget = usable_input(window, None, exact=self.route.exact, calibration=calibration)
        return budget.behind(self.conversation.fixed_tokens)

    def cannot_take(self, tokens: int) -> bool:
        """Whether so many tokens, of our estimate, are certainly more than its window."""
        window = self.told_window
        if window is None:
            return False
        return tokens * self.experience.calibration > window.tokens * (1 if self.route.exact else 1 + ESTIMATE_MARGIN)

    def real_tokens(self, draft: Draft) -> int:
        """Of a draft, as this upstream counts, as far as that was learned."""
        return int(draft.tokens * self.experience.calibration)

    @cached_property
    def place(self) -> Place:
        """Where it goes, as lessons are kept."""
        return place_of(self.caller.tenant, self.caller.scope, self.route.upstream.base_url, self.request.model)


def labelled(first: bytes, mark: bytes) -> bytes:
    """The first link of the session with this label; without one, the conversation's own."""
    return set_apart(first, mark) if mark else first


def case_of(exchange: Exchange, router: Router, caller: Caller, wish: Wish, request: ChatRequest) -> Case:
    """The request behind its separator, and where it goes."""
    separator = caller.policy.separator
    if separator is not None and wish in ("on", "force"):
        request = request.behind(separator)
    label = session_label(exchange, request) or ""
    return Case(request, caller, router.chat(exchange, caller, request), router, wish, label)


@dataclass(frozen=True, slots=True)
class Copy:
    """How the copy that is sent differs from what the client sent.

    covered, text: the length of the body's part that is left out, and what stands in its place; None for nothing.
    replaced:      message index -> other bytes.
    """

    covered: int
    text: str | None
    replaced: dict[int, bytes]


@dataclass(frozen=True, slots=True)
class Draft:
    """What to send: the body, its size in tokens of our estimate, and why it looks as it does.

    view: the conversation as it is sent, None where nobody looked.
    copy: None where the client's bytes are sent.
    max_output: the lower limit that was put in place of the client's, None where its own holds.
    warning: of what the client does that compaction cannot help; None for nothing.
    """

    body: bytes
    tokens: int
    outcome: Outcome
    reason: str
    record: Record | None = None
    view: Cooled | None = None
    copy: Copy | None = None
    max_output: int | None = None
    warning: str | None = None


def untouched(request: ChatRequest, outcome: Outcome, reason: str, view: Cooled | None = None) -> Draft:
    """The request as the client sent it, behind its separator if it has one."""
    if request.dropped_tokens and outcome == "none":
        outcome, reason = "applied", "separator"
    return Draft(request.body, request.tokens, outcome, reason, view=view)


def drafted(case: Case, view: Cooled, record: Record | None, outcome: Outcome, reason: str) -> Draft:
    """The request with the oldest part replaced by a record, and large messages by their short forms."""
    if record is None and not view.replaced:
        return untouched(case.request, outcome, reason, view)
    tokens = tokens_with(view.conversation, standing_of(record))
    copy = Copy(record.covered if record else 0, record.text if record else None, view.replaced)
    return Draft(body_of(case, copy, case.experience.shape), tokens, outcome, reason, record, view, copy)


def reshaped(case: Case, draft: Draft) -> Iterator[tuple[Shape, Draft]]:
    """A draft in the other shapes that its record may have; nothing where they would not differ."""
    if draft.copy is None:
        return
    tried = {draft.body}
    for shape in SHAPES:
        body = with_output(case, body_of(case, draft.copy, shape), draft.max_output)
        if body not in tried:
            tried.add(body)
            yield shape, replace(draft, body=body)


def with_output(case: Case, body: bytes, limit: int | None) -> bytes:
    """A body with this limit for its output; None leaves the client's."""
    return body if limit is None else json_array.with_fields(body, {case.request.output_key: limit}, without=())


def body_of(case: Case, copy: Copy, shape: Shape) -> bytes:
    request = case.request
    items: Sequence[Item] = range(len(request.messages))
    if copy.text is not None:
        items = assemble(case.conversation, copy.covered, copy.text, shape)
    return json_array.rebuild(request.body, request.parsed, items, copy.replaced)


def standing_of(record: Record | None) -> Standing | None:
    return None if record is None else Standing(record.covered, record.text_tokens)


def job_of(
    case: Case,
    view: Cooled,
    plan: Compact,
    parent: Record | None,
    *,
    target: SummaryTarget | None,
    started: float,
    deadline: float,
    rebuild: bool = False,
) -> Job:
    """The compaction of a case. `deadline` is in seconds, `started` when the conversation was first seen."""
    policy = case.caller.policy
    own = target is not None and (target.name, target.model) == (case.route.name, case.request.model)
    return Job(
        request=case.request,
        conversation=view.conversation,
        replaced=view.replaced,
        digests=case.digests,
        cut=plan.cut,
        parent=parent,
        trigger=plan.trigger,
        must=plan.must,
        tokens_before=plan.tokens_before,
        budget=plan.budget,
        policy=policy,
        target=target,
        tenant=case.caller.tenant,
        session=case.lineage,
        daily_tokens=case.caller.summary_tokens_per_day,
        deadline=deadline,
        started=started,
        aligned=own,
        shape=case.experience.shape,
        rebuild=rebuild,
        resumed=case.origin.resumed if case.origin else None,
    )
