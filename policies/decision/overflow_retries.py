"""Retries after an overflow: at most three, each smaller (docs/design.md, "The ladder")."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from policies import numbers
from policies.conversation.conversation import Conversation
from policies.decision.budget import Budget, budget_of, usable_input, with_pins
from policies.decision.cut import Cut, choose_cut
from policies.decision.plan import ActiveCheckpoint, is_irreducible, with_names
from policies.settings import PolicySettings

_D = TypeVar("_D")

LimitKind = Literal["window", "input", "pool", "tier"]
OverflowAction = Literal["compact", "lower_output", "inspect", "outsized"]


@dataclass(frozen=True, slots=True)
class StatedLimit:
    """The numbers in an overflow error: the limit, and the size of the refused input as the upstream counts it.

    kind:           the meaning of `limit`: prompt and output together, the prompt alone, a server's memory (shared with
                    other requests), or an account's quota. None if no limit is stated.
    output_tokens:  the requested output, if stated.
    is_lower_bound: True if `input_tokens` is where the upstream stopped counting, or a guess. It calibrates nothing.
    learnable:      True if `limit` may be stored as the model's limit.
    action:         lower_output if the prompt alone would have fitted. inspect if it is an overflow only when
                    the proxy's estimate agrees that the window was full. outsized likewise; for an unknown window,
                    only if no prompt as large has succeeded.
    from_share:     for inspect: the share of `limit` from which it is an overflow.
    holds:          seconds for which the limit may be stored; None for the default.
    is_uncached:    True if cached tokens do not count.
    with_model:     True if a summarizer would not be refused for the same reason.
    share_of_bytes: for a refusal by bytes that are mostly text: the maximum share of the sent bytes; else None.
    """

    limit: int | None = None
    input_tokens: int | None = None
    kind: LimitKind | None = None
    output_tokens: int | None = None
    is_lower_bound: bool = False
    learnable: bool = True
    action: OverflowAction = "compact"
    from_share: float = numbers.FULL
    holds: float | None = None
    is_uncached: bool = False
    with_model: bool = True
    share_of_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Retry(Generic[_D]):
    """The next attempt: less room for the output, or the `attempt`-th smaller prompt.

    refused, stated: the last attempt, and the numbers in its refusal.
    """

    refused: _D
    stated: StatedLimit
    attempt: int

    @property
    def lowers_output(self) -> bool:
        """Return True if the prompt is unchanged and the output gets less room."""
        return self.attempt < 0


Ladder = Generator[Retry[_D], tuple[_D, StatedLimit] | None, None]


def retries(refused: _D, stated: StatedLimit, most: int) -> Ladder[_D]:
    """Yield the retries after an overflow until one succeeds.

    The caller sends back each attempt and its refusal, or None if there was nothing to send.
    """
    for attempt in range(-1, most):
        if (refusal := (yield Retry(refused, stated, attempt))) is not None:
            refused, stated = refusal


def next_retry(ladder: Ladder[_D], refusal: tuple[_D, StatedLimit] | None) -> Retry[_D] | None:
    """Return the next retry; None after the last."""
    try:
        return ladder.send(refusal)
    except StopIteration:
        return None


@dataclass(frozen=True, slots=True)
class Rung:
    """A retry: reduce the request to `target` tokens by a cut, and the contents of the tail to `tail_tokens`.

    cut:         None keeps the current record, if any.
    tail_tokens: None leaves the contents unchanged.
    most:        maximum tokens of the retry, so that it is not refused as well.
    """

    budget: Budget
    target: int
    cut: Cut | None
    tail_tokens: int | None
    with_model: bool
    most: int


def is_plausible(stated: StatedLimit, sent_tokens: int, window: int | None, largest: int = 0) -> bool:
    """Return True if an error is an overflow, as far as that depends on how much was sent.

    Tokens are in the upstream's own units. largest: tokens of the largest prompt that succeeded.
    """
    if stated.action not in ("inspect", "outsized"):
        return True
    window = stated.limit or window
    if window is not None:
        return sent_tokens >= stated.from_share * window
    return stated.action == "outsized" and sent_tokens > max(largest, numbers.SMALL_PROMPT)


def lowered_output(
    stated: StatedLimit,
    *,
    sent_tokens: int,
    window: int | None,
    max_output: int | None,
    floor: int | None,
    margin: float = numbers.ESTIMATE_MARGIN,
) -> int | None:
    """Return the output that fits next to a prompt which alone would have fitted; None if it is below `floor`.

    sent_tokens: the prompt by the proxy's estimate. The upstream's count takes precedence.
    max_output: the requested maximum. If no number explains the refusal of an output larger than its prompt, half of it
    is tried, and at most as much as the prompt.
    """
    limit = stated.limit or window
    if max_output is None or floor is None or stated.kind == "input":
        return None
    counted = None if stated.is_lower_bound else stated.input_tokens
    prompt = int(sent_tokens * (1 + margin)) if counted is None else counted + numbers.COUNTED_MARGIN
    room = max_output if limit is None else limit - prompt
    if room >= max_output and stated.limit is None and max_output > sent_tokens:
        room = min(sent_tokens, max_output // 2)
    return room if floor <= room < max_output else None


def capped_output(most: int, *, max_output: int | None, floor: int | None) -> int | None:
    """Return the output after a refusal that allows `most`; None if it is below `floor` or no reduction."""
    return most if max_output is not None and floor is not None and floor <= most < max_output else None


def refused_budget(
    stated: StatedLimit, *, sent_tokens: int, window: int | None, max_output: int | None, exact: bool
) -> Budget | None:
    """Return the budget after a refusal, in units of the proxy's estimate. `sent_tokens` were too many.

    Return None if no smaller prompt can help because the requested output alone fills the window.
    """
    limit = stated.limit or window
    ceiling = int(sent_tokens * numbers.GUESSED_WINDOW * (stated.share_of_bytes or 1))
    if limit is None:
        return budget_of(ceiling, ceiling)
    of_prompt = stated.limit is not None and stated.kind == "input"
    if max_output is not None and max_output >= limit and not of_prompt:
        return None
    calibration = max(1.0, stated.input_tokens / sent_tokens) if stated.input_tokens and sent_tokens else 1.0
    planned = usable_input(limit, max_output, exact=exact, calibration=calibration, of_prompt=of_prompt).usable
    room_left = int((limit - (0 if of_prompt else max_output or 0)) * numbers.GUESSED_WINDOW / calibration)
    # If the stated numbers cannot explain the refusal, trust the refusal.
    return budget_of(limit, min(planned, room_left, ceiling))


def stated_room(
    stated: StatedLimit, *, sent_tokens: int, max_output: int | None, exact: bool, calibration: float
) -> int | None:
    """Return the maximum prompt after a refusal with a limit, in units of the proxy's estimate.

    Return None if no limit is stated, or if it does not explain the refusal.
    """
    if stated.limit is None:
        return None
    limit, output = stated.limit, max_output
    if stated.kind == "input":
        output = 0
    elif output is None:
        output = min(int(numbers.LEAST_ANSWER * limit), numbers.DEFAULT_RESERVED)
    counted = None if stated.is_lower_bound else stated.input_tokens
    if counted is None:
        room = int((limit - output) * (1 - (numbers.EXACT_MARGIN if exact else numbers.ESTIMATE_MARGIN)) / calibration)
        return room if 0 < room < numbers.RETRY_SHRINKS * sent_tokens else None
    over = counted - (limit - output)
    if over <= 0 or counted <= 0:
        return None
    room = limit - output - int(numbers.STATED_MARGIN * limit + numbers.MISCOUNTED * over) - numbers.COUNTED_MARGIN
    return max(1, int(room * sent_tokens / counted))


def next_rung(
    conversation: Conversation,
    budget: Budget,
    policy: PolicySettings,
    standing: ActiveCheckpoint | None,
    *,
    attempt: int,
    smallest_sent: int,
    room: int | None = None,
) -> Rung:
    """Return the `attempt`-th retry, counted from 0. It must be 10 % smaller than `smallest_sent` tokens.

    budget: with the tokens of all pins, which get their share.
    room: the maximum that the stated limit allows; None without one. The first retry may use all of it, even if that is
    hardly less than before. The history is cut as usual, but contents no further.
    """
    budget = with_names(budget.with_fixed(conversation.fixed_tokens), policy)
    budget = with_pins(budget, budget.pins, policy.pins.budget_ratio)
    target = min(budget.at(numbers.RETRY_TARGETS[attempt]), int(numbers.RETRY_SHRINKS * smallest_sent))
    most_of_record = int(max(numbers.RETRY_RECORD * (target - budget.fixed), numbers.RETRY_LEAST_RECORD * target))
    record = min(budget.record, most_of_record)
    names, pins = min(budget.names, most_of_record - record), min(budget.pins, most_of_record)
    budget = replace(budget, record=record, names=names, pins=pins)
    covered = standing.covered if standing else 0
    cut = choose_cut(conversation, budget, policy, covered=covered, target=target)
    record = budget.replacing if cut else standing.record_tokens if standing else 0
    smaller = int(numbers.RETRY_SHRINKS * smallest_sent)
    most = smaller if room is None or attempt else room
    aim = target if room is None or attempt == len(numbers.RETRY_TARGETS) - 1 else min(room, most)
    room = aim - conversation.fixed_tokens - record
    fits = conversation.kept_tokens(cut.position if cut else covered) <= room
    return Rung(
        budget,
        target,
        cut,
        tail_tokens=None if fits else max(room, numbers.RETRY_LEAST_TAIL),
        with_model=attempt < len(numbers.RETRY_TARGETS) - 1 and not is_irreducible(conversation, budget, policy),
        most=most,
    )
