"""Choosing the cut: half of the window at a turn, else a round boundary, else none (docs/design.md, "The cut")."""

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
    """body[:position] is to be covered; `kept` counts what still goes upstream of the body, in tokens.

    fallback_reason: why the cut is at no turn boundary. An adjustment is a move from the half to a turn's boundary,
    counted in units; a cut between rounds is where it has to be to fit.
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
    """Where a compaction should end, in tokens of the whole request.

    The policy's target, lowered to its minimum where fewer than 8 rounds of average size would fit before the next
    trigger.
    """
    units = conversation.units
    average = conversation.tokens_from[0] / len(units) if units else 0
    headroom = (policy.compaction_threshold - policy.target_ratio) * budget.movable
    crowded = average > 0 and headroom / average < numbers.ROUNDS_TO_BUY
    ratio = policy.min_target_ratio if crowded else policy.target_ratio
    return budget.fixed + int(ratio * measured_room(budget, policy))


def measured_room(budget: Budget, policy: PolicySettings) -> int:
    """Return the tokens of room of which a compaction leaves `target_ratio`.

    In a small room these are M. In a larger one what stays grows with the root of M: a conversation needs little more
    word for word there, and each request reads what stays.
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
    """The cut beyond the standing checkpoint's `covered` messages that brings the request to `target` tokens.

    None where nothing may be cut (L3). A cut that misses the target is marked `best-effort`.
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
    # Where room is no concern (a forced compaction, too many messages), half by count is what is left to go by.
    roomy = fits(legal[0])
    rounds = _first_fitting([cut for cut in legal if cut >= half] if roomy else legal, fits)
    asked = _position_by_policy(conversation, units, policy)
    least = least_kept(budget, policy)
    if turn is not None and (
        turn <= half
        or roomy
        or rounds is None
        or (turn <= max(rounds, asked) and _keeps_enough(conversation, least, turn, rounds, room))
    ):
        return _describe(conversation, units, turn, "L0", "turn-boundary", half)
    reason = _why_no_turn(conversation, legal, units, policy, turn)
    if rounds is not None:
        return _describe(conversation, units, rounds, "L1", "round-boundary", half, reason)
    return _describe(conversation, units, legal[-1], "L1", "best-effort", half, reason)


def _why_no_turn(
    conversation: Conversation, legal: list[int], units: list[int], policy: PolicySettings, turn: int | None
) -> Fallback:
    """Why a turn boundary did not serve (R0's compressionFallbackReason)."""
    if len(units) < policy.min_rounds:
        return "not-enough-rounds"
    if turn is not None:
        return "turn-keeps-too-little"
    return "turns-do-not-fit" if set(legal) & set(conversation.turns) else "single-turn-only"


def longer_tail(
    conversation: Conversation, policy: PolicySettings, cut: Cut, *, covered: int, room: int, least: int
) -> Cut | None:
    """The newest cut before this one that keeps `least` tokens and what a policy asks for, at a turn's beginning where
    one does; the one that keeps the most where none does. None where the cut keeps that, or nothing older fits a `room`
    of so many tokens."""
    units = [i for i in conversation.units if i >= covered]
    asked = min(_position_by_policy(conversation, units, policy), units[max(0, len(units) - numbers.LEAST_UNITS)])

    def keeps(position: int) -> bool:
        return position <= asked and conversation.kept_tokens(position) >= least

    if keeps(cut.position):
        return None
    legal = [position for position in legal_cuts(conversation) if covered < position < cut.position]
    fitting = [position for position in legal if conversation.kept_tokens(position) <= room]
    enough = [position for position in reversed(fitting) if keeps(position)]
    if not fitting:
        return None
    turns = {*conversation.turns}
    position = next((each for each in enough if each in turns), (enough or fitting[:1])[0])
    half = _half(conversation, units, policy)
    if position in turns:
        return _describe(conversation, units, position, "L0", "turn-boundary", half)
    reason = cut.fallback_reason or "turns-do-not-fit"
    return _describe(conversation, units, position, "L1", "round-boundary", half, reason)


def least_kept(budget: Budget, policy: PolicySettings) -> int:
    """Tokens of the newest messages that stay word for word where the record wants the room."""
    room = measured_room(budget, policy)
    return int(
        (numbers.LEAST_TAIL_SMALL if room <= numbers.SMALL_ROOM else numbers.LEAST_TAIL) * by_target(policy) * room
    )


def by_target(policy: PolicySettings) -> float:
    """What the shares of a request that stay are multiplied by, where a policy goes down to less than the defaults."""
    return min(1.0, policy.target_ratio / DEFAULTS.target_ratio)


def _half(conversation: Conversation, units: list[int], policy: PolicySettings) -> int:
    """The position that keeps the newer half of the units, and the newest messages a policy asks for."""
    half = units[len(units) // 2]
    return min(half, _position_by_policy(conversation, units, policy))


def _position_by_policy(conversation: Conversation, units: list[int], policy: PolicySettings) -> int:
    """The position that keeps the newest messages and units that a policy asks for."""
    overlap = units[max(0, len(units) - policy.min_overlap - 1)]
    return min(overlap, max(units[0], len(conversation.body) - policy.keep_recent_messages))


def _turn_boundary(conversation: Conversation, legal: list[int], half: int, fits: Callable[[int], bool]) -> int | None:
    turns = set(conversation.turns)
    boundaries = [cut for cut in legal if cut in turns]
    before = [cut for cut in boundaries if cut <= half]
    if before and fits(before[-1]):
        return before[-1]
    return _first_fitting([cut for cut in boundaries if cut > half], fits)


def _first_fitting(cuts: list[int], fits: Callable[[int], bool]) -> int | None:
    """Kept tokens fall with the position, save for anchors of different size: the first that fits keeps the most."""
    return next((cut for cut in cuts if fits(cut)), None)


def _keeps_enough(conversation: Conversation, least: int, turn: int, rounds: int, room: int) -> bool:
    """A late turn boundary may leave next to nothing (a question asked after 200 rounds): then rounds serve better."""
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
