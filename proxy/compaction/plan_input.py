"""A request with everything that its plan depends on, in two stages."""

import dataclasses
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec.structs import replace

from policies.cached import cached_property
from policies.conversation.apart import split_voices
from policies.conversation.conversation import NO_LIMITS, Conversation, Rooms
from policies.conversation.prefix_digests import Chain, mark_of
from policies.conversation.transcript import Utterance
from policies.decision.budget import Budget, planned_output, reserved_output, usable_input, usable_tokens, with_pins
from policies.decision.legal_cuts import legal_cuts
from policies.decision.media import NO_MEDIA_LIMITS, MediaLimits
from policies.decision.plan import Limits, is_far_below, limits_of
from policies.model_profile import ModelProfile, binds_thinking
from policies.numbers import ESTIMATE_MARGIN, RETRY_TARGETS
from policies.record import text_protocol
from policies.record.masking import as_allowed
from policies.record.pins import Pinned
from policies.record.record import Record
from policies.secrets.mask import mask_secrets, mask_utterances
from proxy.callers.api_head import ApiHead
from proxy.callers.session_label import label_given, label_of
from proxy.callers.tenants import Caller
from proxy.dialects.reader import CountedRequest
from proxy.models.table import Window
from proxy.models.windows import ModelKey, session_key
from proxy.sessions.index import Target
from proxy.upstreams.routes import Route, Router, SummaryTarget

_CALIBRATION_STEP = 0.25
# Shares of a window for covered messages that load tools, that hold the user's words for the task, and that hold files
# of rules. `_LEAST_TASK` is the least for the words. A message over `_OVERSIZE` is cut instead.
_LOADING = 0.1
_TASK = 0.15
_LEAST_TASK = 1_500
_RULES = 0.22
_OVERSIZE = 0.6

Outcome = Literal["none", "applied", "reused", "cooled", "shadow", "bypass", "pending", "failed-open"]
Mode = Literal["off", "on", "shadow", "force"]


class RoutedRequest(msgspec.Struct, frozen=True, dict=True):
    """A counted request with its session and its route.

    label:      the client's name of its session; empty if it gives none.
    experience: the profile of this model at this upstream.
    """

    request: CountedRequest
    caller: Caller
    mode: Mode
    route: Route
    chain: Chain
    label: str
    experience: ModelProfile

    @property
    def place(self) -> ModelKey:
        """Return the key of the model at its upstream, under which its profile is stored."""
        return self.route.place

    def contents_at(self, position: int) -> list[Utterance]:
        """Return the contents of one message, without secrets unless the policy keeps them."""
        return self._allow_utterances(self.request.contents_at(position))

    def _allow_utterances(self, utterances: list[Utterance]) -> list[Utterance]:
        return mask_utterances(utterances) if self.caller.policy.secrets == "mask" else utterances

    def allowed_text(self, text: str) -> str:
        """Mask the secrets of a text about the conversation, unless the policy keeps them."""
        return mask_secrets(text) if self.caller.policy.secrets == "mask" else text

    def allowed_record(self, record: Record) -> Record:
        """Mask the secrets of a record of the conversation, unless the policy keeps them."""
        return as_allowed(record, self.caller.policy.secrets)

    def is_far_below(self, tokens: int) -> bool:
        """Return True if this number of tokens is so small for the window that its limits do not matter."""
        return self._is_small if tokens == self.request.tokens else self._is_far_below(tokens)

    @cached_property
    def _is_small(self) -> bool:
        return self._is_far_below(self.request.tokens)

    def _is_far_below(self, tokens: int) -> bool:
        window = self.route.window
        return window is not None and is_far_below(
            tokens, window.tokens, self.experience.highest_calibration, self.caller.policy
        )

    @property
    def is_plain(self) -> bool:
        """Return True if it is sent unchanged, whatever was learned about its model."""
        request, settings, window = self.request, self.request.settings, self.route.window
        if settings.passthrough or settings.reactive or self.mode not in ("on", "shadow") or window is None:
            return False
        if request.dropped_tokens or request.history.is_signed:
            return False
        if self.ages_media or self.caller.policy.shorten.from_start:
            return False
        if self.experience.originals_until or not self.is_far_below(request.tokens):
            return False
        return self.real_tokens(request.tokens) + (settings.max_output or 0) <= window.tokens

    @property
    def is_let_through(self) -> bool:
        """Return True if it is sent unchanged, whatever its plan is."""
        return self.request.settings.passthrough is not None or self.mode in ("off", "shadow")

    @property
    def ages_media(self) -> bool:
        """Return True if it has media that may be left out."""
        return self.request.history.has_media and self.caller.policy.media.mode == "on"

    @property
    def longest_answer(self) -> int | None:
        """Return the expected tokens of its response; None if unknown or if the whole output must fit."""
        return None

    @property
    def usable(self) -> int | None:
        """Return the tokens of its window that a prompt may take, as the model counts them."""
        window = self.route.window
        if window is None:
            return None
        limit, exact, longest = self.planned_output, self.route.exact, self.longest_answer
        return usable_tokens(window.tokens, limit, exact=exact, of_prompt=window.of_prompt, longest_answer=longest)

    @property
    def planned_output(self) -> int | None:
        """Return the output to reserve; None for a default."""
        return self.request.settings.max_output

    def real_tokens(self, tokens: int) -> int:
        """Convert estimated tokens to those of this upstream, as far as the ratio was learned."""
        return int(tokens * self.calibration)

    @cached_property
    def calibration(self) -> float:
        """Return the upstream's tokens for each estimated token in this session."""
        experience = self.experience
        return experience.calibration_for(session_key(self.chain.session)) if experience.ratios else experience.guessed


class PlanInput(RoutedRequest, frozen=True, dict=True):
    """A routed request with the lessons of its upstream: everything that its plan and prompt depend on.

    last_answer:       tokens of the longest recent response of this session, else of its model. None if unknown.
    summarizer:        the model that summarizes for it; None for no model.
    is_copied:         True if a rewritten request may be sent. It is False for a while after a rejected one.
    overflowed:        True if its session has overflowed there, so that a record may be in use whatever its size.
    may_try_larger:    True if a prompt that was too long was rejected there long enough ago.
    learned_media:     the learned limits of its upstream for media.
    is_cold:           True if the provider's cache no longer holds the prompt of its session.
    newest_media_only: True if only the newest turn's media are sent, since its upstream rejected more.
    pinned:            the texts of its messages that stay in every prompt, as the client wrote them.
    pins_tokens:       the tokens of these texts in a record.
    """

    last_answer: int | None
    summarizer: SummaryTarget | None
    is_copied: bool = True
    overflowed: bool = False
    may_try_larger: bool = False
    learned_media: MediaLimits = NO_MEDIA_LIMITS
    is_cold: bool = False
    newest_media_only: bool = False
    pinned: Pinned = Pinned()
    pins_tokens: int = 0

    @cached_property
    def conversation(self) -> Conversation:
        """Return the conversation as the policies see it."""
        return Conversation(
            self.request.messages,
            self.request.tools_tokens,
            self.request.settings.order,
            instructions_covered=self.chain.covers_instructions,
            rooms=self._rooms,
            outline=self.request.history.outline,
            carried=self._carried_at,
            barred=self.chain.barred,
        )

    @property
    def _carried_at(self) -> int | None:
        """Return the position of the record that the client carries; None without one."""
        carried = self.request.carried
        return None if carried is None else carried.index - self.request.history.head

    @cached_property
    def carried(self) -> Record | None:
        """Return the record that the client carries, which covers the messages up to it; None without one."""
        position = self._carried_at
        if position is None or self.request.carried is None:
            return None
        return self.allowed_record(replace(self.request.carried.record, covered=position + 1))

    @cached_property
    def shift(self) -> int:
        """Return the offset from positions in this request to stored positions.

        It is more than 0 if the client carries a record, which replaces the messages before it.
        """
        if self.carried is None or self.request.carried is None:
            return 0
        positions = max((entry.position for entry in self.carried.entries), default=-1) + 1
        return max(0, max(positions, self.request.carried.record.covered) - self.carried.covered)

    def absolute(self, position: int) -> int:
        """Return the position of a message in the whole conversation."""
        return position + self.shift

    def relative(self, absolute: int) -> int | None:
        """Return the position of a message in this request; None if the request no longer has it."""
        covered = self.carried.covered if self.carried else 0
        return absolute - self.shift if absolute - self.shift >= covered else None

    @property
    def media_limits(self) -> MediaLimits:
        """Return the known media limits of its upstream; none if its policy removes no media."""
        if self.caller.policy.media.mode == "off":
            return NO_MEDIA_LIMITS
        return self.route.media.at_most(self.learned_media)

    @property
    def _rooms(self) -> Rooms:
        """Return the shares of the window next to the tools, in estimated tokens."""
        if self.route.window is None:
            return NO_LIMITS
        window = self.route.window.tokens / self.calibration
        room = max(0.0, window - self.request.tools_tokens)
        task = max(min(_LEAST_TASK, 2 * _TASK * room), _TASK * room)
        return Rooms(int(_LOADING * window), int(task), int(_RULES * window), oversize=int(_OVERSIZE * room))

    @cached_property
    def limits(self) -> Limits:
        """Return the budget and the known facts about the window."""
        policy = self.caller.policy
        limits = limits_of(self.usable_input(self.calibration), policy, self.conversation.fixed_tokens)
        if not self.pins_tokens:
            return limits
        return dataclasses.replace(limits, budget=with_pins(limits.budget, self.pins_tokens, policy.pins.budget_ratio))

    @cached_property
    def pinned_positions(self) -> frozenset[int]:
        """Return the positions of results that are or were pinned. They have no short forms."""
        matched = self.pinned.matched
        return frozenset(at - self.shift for at in matched) if self.shift else matched

    def usable_input(self, calibration: float = 1.0) -> Budget | None:
        """Return the budget of its model; None without a window. A calibration converts it to estimated tokens."""
        window = self.route.window
        if window is None:
            return None
        return usable_input(
            window.tokens,
            self.planned_output,
            exact=self.route.exact,
            calibration=calibration,
            of_prompt=window.of_prompt,
            longest_answer=self.longest_answer,
        )

    @property
    def planned_output(self) -> int | None:
        """Return the output to reserve: less than the request's limit if that can be lowered."""
        limit, window, floor = self.request.settings.max_output, self.route.window, self.output_floor
        if limit is None or window is None or floor is None or not self.may_lower_output:
            return limit
        return planned_output(window.tokens, limit, floor)

    def reserved_output(self, window: int | None) -> int | None:
        """Return the output to reserve in a window that an upstream has stated; None without a limit."""
        limit, floor = self.request.settings.max_output, self.output_floor
        if limit is None or window is None or floor is None:
            return limit
        return reserved_output(window, planned_output(window, limit, floor), self.longest_answer)

    @property
    def may_lower_output(self) -> bool:
        """Return True if an output limit that does not fit may be lowered before a refusal."""
        window = self.stated_window
        return window is not None and not window.of_prompt and self.caller.policy.output_floor is not None

    @property
    def output_floor(self) -> int | None:
        """Return the least value of a lowered output limit; None if it may not be lowered."""
        floor = self.caller.policy.output_floor
        return None if floor is None else max(floor, self.request.settings.least_output)

    @property
    def stated_window(self) -> Window | None:
        """Return the window if the config or the upstream states it. A table may be wrong."""
        window = self.route.window
        return None if window is None or window.source == "table" else window

    @property
    def longest_answer(self) -> int | None:
        """Return the expected tokens of its response; None if the whole requested output must fit."""
        if self.request.settings.max_output is not None and not self.may_lower_output:
            return None
        return self.last_answer

    @cached_property
    def cuts(self) -> list[int]:
        """Return the positions where the conversation may be cut."""
        return legal_cuts(self.conversation)

    def cut_at(self, digest: bytes) -> int | None:
        """Return the cut of the prefix with this digest; None without one."""
        return next((cut for cut in self.cuts if self.chain.digests[cut] == digest), None)

    @property
    def retries(self) -> int:
        """Return the number of smaller retries after an overflow."""
        policy = self.caller.policy
        return min(policy.retry_on_overflow, policy.max_iterations, len(RETRY_TARGETS))

    def steady_budget(self, window: int) -> Budget:
        """Return the budget of a window for frozen content. It ignores this request and recent responses."""
        calibration = self.calibration // _CALIBRATION_STEP * _CALIBRATION_STEP
        budget = usable_input(window, None, exact=self.route.exact, calibration=calibration)
        return budget.with_fixed(self.conversation.fixed_tokens)

    @cached_property
    def binds_thinking(self) -> bool:
        """Return True if its upstream rejects thinking after another prompt than that it was made for."""
        is_bound = self.experience.binds_thinking or binds_thinking(self.request.settings.model)
        if not is_bound or self.request.settings.strips_thinking:
            return False
        return any(message.signed == "bound" for message in self.conversation.body)

    @cached_property
    def has_tools_in_text(self) -> bool:
        """Return True if its agent calls tools in plain text, so that the results are in user messages."""
        opening = self.conversation.body[: text_protocol.OPENING]
        if any(message.calls for message in opening):
            return False
        return text_protocol.has_tools_in_text(self.request.utterances(0, len(opening)))

    def utterances(self, start: int, end: int, *, answered: bool = False) -> list[Utterance]:
        """Return the utterances of body[start:end] by author, without secrets unless the policy keeps them.

        answered: True to include the output of a last call in plain text, which is in the message after it.
        """
        self._read_messages(range(start, end))
        utterances = [utterance for at in range(start, end) for utterance in self._utterances_by_position[at]]
        if self.has_tools_in_text:
            before, after = self._last_utterance(start - 1), self._last_utterance(end) if answered else None
            utterances = text_protocol.as_tools(utterances, before, after)
        return split_voices(utterances, self._spoken, self._foreign)

    def unmasked_utterances(self, start: int, end: int) -> list[Utterance]:
        """Return the utterances of body[start:end] as the client wrote them."""
        utterances = self.request.utterances(start, end)
        if self.has_tools_in_text:
            before = self.request.utterances(start - 1, start)[-1:] if start else []
            utterances = text_protocol.as_tools(utterances, next(iter(before), None))
        return split_voices(utterances, self._spoken, self._foreign)

    def _read_messages(self, positions: Iterable[int]) -> None:
        """Decode and mask the messages at these positions, all together. Each is read once."""
        unread = [at for at in positions if at not in self._utterances_by_position]
        utterances = [self.request.utterances(at, at + 1) for at in unread]
        allowed = iter(self._allow_utterances([utterance for of_message in utterances for utterance in of_message]))
        for at, of_message in zip(unread, utterances, strict=True):
            self._utterances_by_position[at] = [next(allowed) for _ in of_message]

    @cached_property
    def _utterances_by_position(self) -> dict[int, list[Utterance]]:
        return {}

    def _last_utterance(self, position: int) -> Utterance | None:
        """Return the last utterance of a message; None without such a message."""
        if not 0 <= position < len(self.conversation.body):
            return None
        self._read_messages((position,))
        return next(reversed(self._utterances_by_position[position]), None)

    @cached_property
    def _spoken(self) -> frozenset[int]:
        outline = self.conversation.outline
        return frozenset(outline.spoken or outline.users)

    @cached_property
    def _foreign(self) -> frozenset[int]:
        return frozenset(self.conversation.outline.foreign)

    @property
    def has_stored_items(self) -> bool:
        """Return True if the request refers to messages that its provider stores."""
        return any(message.stored for message in self.conversation.body)

    @property
    def fits_whole(self) -> bool:
        """Return True if the unchanged request may fit its window, as far as that is known."""
        real = self.limits.real
        return real is None or self.request.tokens <= real.usable

    def cannot_take(self, tokens: int) -> bool:
        """Return True if these estimated tokens and the least output certainly exceed its window."""
        window = self.stated_window
        if window is None:
            return False
        has_output = self.request.settings.max_output is not None and not window.of_prompt
        output = self.output_floor or 0 if has_output else 0
        return tokens * self.calibration + output > window.tokens * (1 if self.route.exact else 1 + ESTIMATE_MARGIN)


def from_separator(request: CountedRequest, caller: Caller, mode: Mode) -> CountedRequest:
    """Return the request from its newest separator, if its policy has one and its mode compacts."""
    separator = caller.policy.separator
    return request if separator is None or mode not in ("on", "force") else request.after_separator(separator)


def routed_request(
    request: CountedRequest, caller: Caller, mode: Mode, label: str, route: Route, experience: ModelProfile
) -> RoutedRequest:
    """Return the request of a session with this label, on this route."""
    chain = Chain(
        caller.scope,
        request.history.body,
        mark_of(caller.labels, label),
        covers_instructions=caller.policy.compress_system_messages,
        seen=request.history.digests,
    )
    return RoutedRequest(request, caller, mode, route, chain, label, experience)


def plan_input_of(head: ApiHead, router: Router, caller: Caller, mode: Mode, request: CountedRequest) -> PlanInput:
    """Return the plan input of a request."""
    request = from_separator(request, caller, mode)
    label = label_of(head.header) or label_given(request)
    route = router.conversation(head, caller, request.settings.model)
    routed = routed_request(request, caller, mode, label, route, router.experience(route.place))
    return with_lessons(routed, router)


def plan_input_of_pasted(
    router: Router, caller: Caller, mode: Mode, request: CountedRequest, session: Target | None
) -> PlanInput:
    """Return the plan input of a pasted request without headers. session: the stored session that it continues."""
    plan_input = plan_input_of(ApiHead("POST", "/", []).asking(request.dialect), router, caller, mode, request)
    if session is None:
        return plan_input
    return replace(plan_input, chain=replace(plan_input.chain, first=session.first, mark=session.mark or b""))


def with_lessons(routed: RoutedRequest, router: Router) -> PlanInput:
    """Add what the router learned about the model at its upstream."""
    return PlanInput(
        routed.request,
        routed.caller,
        routed.mode,
        routed.route,
        replace(routed.chain, links=routed.request.history.outline.links),
        routed.label,
        router.experience(routed.place),
        last_answer=router.longest_answer(routed.place, routed.chain.session),
        summarizer=router.summary_target(routed.caller, routed.request, routed.route, routed.chain.session),
        is_copied=router.takes_copies(routed.place),
        overflowed=router.has_overflowed(routed.place, routed.chain),
        may_try_larger=router.may_try_larger(routed.place),
        is_cold=router.is_cold(routed.place, routed.chain.session),
        learned_media=router.media_limits(routed.place),
    )


def with_newest_lessons(plan_input: PlanInput, router: Router) -> PlanInput:
    """Return the plan input with the newest lessons."""
    return replace(
        plan_input,
        experience=router.experience(plan_input.place),
        learned_media=router.media_limits(plan_input.place),
        last_answer=router.longest_answer(plan_input.place, plan_input.chain.session),
        summarizer=router.summary_target(
            plan_input.caller, plan_input.request, router.measure(plan_input.route), plan_input.chain.session
        ),
    )
