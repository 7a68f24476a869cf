"""Choice of the cut: half of the units at a turn, else a round boundary, else none (docs/design.md, "The cut")."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from policies import numbers
from policies.conversation.conversation import Conversation
from policies.decision.budget import Budget
from policies.decision.legal_cuts import legal_cuts
from policies.settings import DEFAULTS, PolicySettings

Level = Literal["L0", "L1"]
Strategy = Literal["turn-boundary", "round-boundary", "best-effort"]
Adjustment = Literal["exact", "adjusted-to-turn-start", "adjusted-to-turn-end"]
Fallback = Literal["not-enough-rounds", "single-turn-only", "turns-do-not-fit", "turn-keeps-too-little"]


@dataclass(frozen=True, slots=True)
class Cut:
    """The position up to which messages are covered: body[:position].

    kept: tokens of the body that are still sent.
    adjustment: the move from the half to a boundary of a turn, in units. Cuts between rounds are not adjusted.
    fallback_reason: why the cut is not at a turn boundary.
    """

    position: int
    level: Level
    strategy: Strategy
    kept: int
    adjustment: Adjustment = "exact"
    adjustment_delta: int = 0
    units_total: int = 0
    units_kept: int = 0
    fallback_reason: Fallback | None = None


def target_tokens(conversation: Conversation, budget: Budget, policy: PolicySettings) -> int:
    """Return the size to which a compaction should reduce the request, in tokens.

    This is the policy's target. The policy's minimum applies if fewer than 8 rounds of average size would fit before
    the next trigger.
    """
    units = conversation.units
    average = conversation.tokens_from[0] / len(units) if units else 0
    headroom = (policy.compaction_threshold - policy.target_ratio) * budget.movable
    crowded = average > 0 and headroom / average < numbers.ROUNDS_TO_BUY
    ratio = policy.min_target_ratio if crowded else policy.target_ratio
    return budget.fixed + int(ratio * measured_room(budget, policy))


def measured_room(budget: Budget, policy: PolicySettings) -> int:
    """Return the room from which `target_ratio` is counted, in tokens.

    In a small window this is M. In a larger one the kept part grows with the root of M: a conversation needs little
    more of it word for word, and each request pays for reading it.
    """
    most = policy.max_target or policy.target_root * sqrt(budget.movable)
    return min(budget.movable, int(most / policy.target_ratio))


def choose_cut(
    conversation: Conversation,
    budget: Budget,
    policy: PolicySettings,
    *,
    covered: int,
    target: int,
) -> Cut | None:
    """Return the cut after the first `covered` messages that reduces the request to `target` tokens.

    Return None if no cut is legal (L3). A cut that misses the target is marked `best-effort`.
    """
    room = target - conversation.fixed_tokens - budget.replacing
    legal = [cut for cut in legal_cuts(conversation) if cut > covered]
    if not legal:
        return None

    def fits(cut: int) -> bool:
        return conversation.kept_tokens(cut) <= room

    units = [i for i in conversation.units if i >= covered]
    half = _half(conversation, units, policy)
    turn = _turn_boundary(conversation, legal, half, fits) if len(units) >= policy.min_rounds else None
    # If every cut fits (a forced compaction, too many messages), cut at half of the units.
    roomy = fits(legal[0])
    rounds = _first_fitting([cut for cut in legal if cut >= half] if roomy else legal, fits)
    position_by_policy = _position_by_policy(conversation, units, policy)
    least = least_kept(budget, policy)
    if turn is not None and (
        turn <= half
        or roomy
        or rounds is None
        or (turn <= max(rounds, position_by_policy) and _keeps_enough(conversation, least, turn, rounds, room))
    ):
        return _describe(conversation, units, turn, "L0", "turn-boundary", half)
    reason = _why_no_turn(conversation, legal, units, policy, turn)
    if rounds is not None:
        return _describe(conversation, units, rounds, "L1", "round-boundary", half, reason)
    return _describe(conversation, units, legal[-1], "L1", "best-effort", half, reason)


def _why_no_turn(
    conversation: Conversation, legal: list[int], units: list[int], policy: PolicySettings, turn: int | None
) -> Fallback:
    """Return why the cut is not at a turn boundary (R0's compressionFallbackReason)."""
    if len(units) < policy.min_rounds:
        return "not-enough-rounds"
    if turn is not None:
        return "turn-keeps-too-little"
    return "turns-do-not-fit" if set(legal) & set(conversation.turns) else "single-turn-only"


def longer_tail(
    conversation: Conversation, policy: PolicySettings, cut: Cut, *, covered: int, room: int, least: int
) -> Cut | None:
    """Return the newest cut before this one that keeps `least` tokens and the messages that the policy keeps.

    A cut at the beginning of a turn is preferred. If no cut keeps enough, return the one that keeps the most. Return
    None if this cut already keeps enough, or if no older cut fits in `room` tokens.
    """
    units = [i for i in conversation.units if i >= covered]
    position_by_policy = min(
        _position_by_policy(conversation, units, policy), units[max(0, len(units) - numbers.LEAST_UNITS)]
    )

    def keeps(position: int) -> bool:
        return position <= position_by_policy and conversation.kept_tokens(position) >= least

    if keeps(cut.position):
        return None
    legal = [position for position in legal_cuts(conversation) if covered < position < cut.position]
    fitting = [position for position in legal if conversation.kept_tokens(position) <= room]
    enough = [position for position in reversed(fitting) if keeps(position)]
    if not fitting:
        return None
    turns = {*conversation.turns}
    position = next(
        (legal_position for legal_position in enough if legal_position in turns), (enough or fitting[:1])[0]
    )
    half = _half(conversation, units, policy)
    if position in turns:
        return _describe(conversation, units, position, "L0", "turn-boundary", half)
    reason = cut.fallback_reason or "turns-do-not-fit"
    return _describe(conversation, units, position, "L1", "round-boundary", half, reason)


def least_kept(budget: Budget, policy: PolicySettings) -> int:
    """Return the tokens of the newest messages that stay word for word even if the record needs room."""
    room = measured_room(budget, policy)
    return int(
        (numbers.LEAST_TAIL_SMALL if room <= numbers.SMALL_ROOM else numbers.LEAST_TAIL) * by_target(policy) * room
    )


def by_target(policy: PolicySettings) -> float:
    """Return the factor for the kept shares of a request: below 1 if the target is below the default."""
    return min(1.0, policy.target_ratio / DEFAULTS.target_ratio)


def _half(conversation: Conversation, units: list[int], policy: PolicySettings) -> int:
    """Return the position that keeps the newer half of the units, and the newest messages that the policy keeps."""
    half = units[len(units) // 2]
    return min(half, _position_by_policy(conversation, units, policy))


def _position_by_policy(conversation: Conversation, units: list[int], policy: PolicySettings) -> int:
    """Return the position that keeps the newest messages and units that the policy keeps."""
    overlap = units[max(0, len(units) - policy.min_overlap - 1)]
    return min(overlap, max(units[0], len(conversation.body) - policy.keep_recent_messages))


def _turn_boundary(conversation: Conversation, legal: list[int], half: int, fits: Callable[[int], bool]) -> int | None:
    turns = set(conversation.turns)
    boundaries = [cut for cut in legal if cut in turns]
    at_or_before_half = [cut for cut in boundaries if cut <= half]
    if at_or_before_half and fits(at_or_before_half[-1]):
        return at_or_before_half[-1]
    return _first_fitting([cut for cut in boundaries if cut > half], fits)


def _first_fitting(cuts: list[int], fits: Callable[[int], bool]) -> int | None:
    """Return the first cut that fits. It keeps the most: kept tokens fall with the position, except for anchors."""
    return next((cut for cut in cuts if fits(cut)), None)


def _keeps_enough(conversation: Conversation, least: int, turn: int, rounds: int, room: int) -> bool:
    """Return True if a late turn boundary keeps enough. A question after 200 rounds would keep almost nothing."""
    least = min(least, conversation.kept_tokens(rounds))
    return conversation.kept_tokens(turn) >= max(room // 2, least)


def _describe(
    conversation: Conversation,
    units: list[int],
    cut: int,
    level: Level,
    strategy: Strategy,
    half: int,
    fallback_reason: Fallback | None = None,
) -> Cut:
    delta = units.index(cut) - units.index(half) if strategy == "turn-boundary" and half in units else 0
    moved: Adjustment = "adjusted-to-turn-start" if delta < 0 else "adjusted-to-turn-end"
    return Cut(
        position=cut,
        level=level,
        strategy=strategy,
        kept=conversation.kept_tokens(cut),
        adjustment=moved if delta else "exact",
        adjustment_delta=abs(delta),
        units_total=len(units),
        units_kept=sum(1 for i in units if i >= cut),
        fallback_reason=fallback_reason,
    )
