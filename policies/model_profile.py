"""What refusals, successes and bills have shown of one model at one upstream, as values that replicas share.

A lesson only ever costs a compaction too early or an overflow that is caught, so the newest holds and all of them
expire.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Final

import msgspec

from policies.decision.assemble import Shape
from policies.decision.media import NO_MEDIA_LIMITS, MediaLimits
from policies.decision.overflow_retries import StatedLimit

LEARNED_TTL = 24 * 3600.0
# Seconds for which no copy is sent to where one was refused for a reason that nobody foresaw.
ORIGINALS = 600.0
# Share of a prompt that was refused without a number from which on others are taken to be refused too; and seconds for
# which that holds at first: one refusal may have been an upstream's whim, a second one like it holds for as long as a
# limit that was stated.
_CEILING = 0.9
FIRST_CEILING_TTL = 3600.0
# Seconds after a refusal from which on a prompt as large as a larger window promises is tried again, where one is
# promised: twice as many after every further refusal, and never more than a lesson holds.
FIRST_TRIAL = 300.0
_MOST_DOUBLINGS = 10
# Below this, fixed overheads and not the text decide the ratio of real to estimated tokens.
MIN_CALIBRATION_TOKENS = 100
# Never below 1.0: trusting a lower estimate risks an overflow. 6.0 is worse than any script through any tokenizer.
CALIBRATION_RANGE: Final = (1.0, 6.0)
CALIBRATION_OBSERVATIONS = 16
# From so many observations on the worst alone is no evidence: providers do report nonsense now and then.
_ENOUGH = 4
# What one session alone may add to the estimates of others: its bills may count what its requests do not hold.
_MOST_OF_ONE = 1.25
# Calibrations of a session.
_REMEMBERED = 1_000
# Answers that are remembered.
ANSWERS = 16
# A prompt that was billed at less than this share of our estimate was not read whole ...
_CUT_OFF_BELOW = 0.5
# ... where the estimate is of so many tokens that no overhead explains it.
_CUT_OFF_FROM = 1_000
# From which versions on a family of Claude models binds thinking to its prompt.
_BINDING_SINCE = {"fable": (5, 1), "mythos": (5, 1), "opus": (5, 5), "sonnet": (5, 5), "haiku": (5, 5)}
_SMALLER_SINCE = {"fable": (5, 0), "mythos": (5, 0), "opus": (4, 7), "sonnet": (5, 0), "haiku": (5, 0)}
_NEVER = (1_000, 0)
# A minor version has a digit or two; a date has eight.
_NAMED = re.compile(r"claude-(?P<family>[a-z]+)-(?P<major>\d{1,2})(?:[.-](?P<minor>\d{1,2}))?(?!\d)")


ENLARGED = "+"


class ModelProfile(msgspec.Struct, frozen=True, omit_defaults=True):
    """`learned_at` is Unix seconds.

    limit:        tokens that a refusal has named; of_prompt: of the prompt alone, not of prompt and output together.
    ratios:       the newest real tokens per estimated token, at most CALIBRATION_OBSERVATIONS.
    sessions:     the session of each ratio; empty for one that is believed at once. One that begins with ENLARGED is of
                  a bill that says nothing to other sessions.
    shape:        how its chat template takes a record.
    tells_usage:  whether a stream may be asked for its usage; some servers refuse the question.
    takes_marks:  whether it takes cache marks of ours (`cache_control`); some servers refuse the field.
    cut_off:      whether it was last seen to read less of a prompt than it was sent.
    guessed:      the ratio before anything was billed.
    originals_until: Unix seconds until which requests go out as they came: a copy was refused, and its original not.
    binds_thinking: whether it has refused thinking behind another prompt than the one it was made for.
    answers:      tokens of the newest answers, coarse (`coarse`), at most ANSWERS.
    ceiling:      tokens of our estimate that a prompt may have, since larger ones were refused without a number.
    ceiling_until: Unix seconds until which it holds.
    refused_at:   Unix seconds at which a prompt was last refused as too long; trials: larger ones since then that were
                  refused when they were due.
    media_bytes, pictures: the most bytes and media of a request that refusals have stated.
    media_at:     Unix seconds of the newest of these refusals.
    """

    limit: int | None = None
    of_prompt: bool = False
    learned_at: float = 0.0
    ratios: tuple[float, ...] = ()
    sessions: tuple[str, ...] = ()
    shape: Shape = "separate"
    tells_usage: bool = True
    takes_marks: bool = True
    cut_off: bool = False
    guessed: float = 1.0
    originals_until: float = 0.0
    binds_thinking: bool = False
    answers: tuple[int, ...] = ()
    ceiling: int | None = None
    ceiling_until: float = 0.0
    refused_at: float = 0.0
    trials: int = 0
    media_bytes: int | None = None
    pictures: int | None = None
    media_at: float = 0.0

    def media_limits(self, now: float) -> MediaLimits:
        """Return the limits of media that were learned lately."""
        if now - self.media_at >= LEARNED_TTL:
            return NO_MEDIA_LIMITS
        return MediaLimits(self.media_bytes, self.pictures)

    def limit_at(self, now: float) -> int | None:
        return self.limit if now - self.learned_at < LEARNED_TTL else None

    def ceiling_at(self, now: float) -> int | None:
        """What a prompt may have at most where no limit was stated, in real tokens."""
        return int(self.ceiling * self.calibration) if self.ceiling is not None and now < self.ceiling_until else None

    def is_trial_due(self, now: float) -> bool:
        """Whether a larger prompt than the refused ones is worth a refusal again: an upstream's limit may have been a
        whim of it, or have changed, and prompts that are kept below it never show that."""
        longer: int = 2 ** min(self.trials, _MOST_DOUBLINGS)
        return now - self.refused_at >= min(LEARNED_TTL, FIRST_TRIAL * longer)

    @property
    def calibration(self) -> float:
        """Return the factor for the estimates of a new session."""
        return self.calibration_for("")

    def calibration_for(self, session: str) -> float:
        """Return the factor for the estimates of a session: the first guess before anything was billed.

        The session's own bills hold for it at once. Those of another session hold beyond `_MOST_OF_ONE` only if those
        of a second one are as high.
        """
        return _calibration(self.ratios, self.sessions, self.guessed, session) if self.ratios else self.guessed

    @property
    def highest_calibration(self) -> float:
        """Return at least what `calibration_for` returns for any session."""
        return max(self.ratios, default=self.guessed)


@lru_cache(_REMEMBERED)
def _calibration(ratios: tuple[float, ...], sessions: tuple[str, ...], guessed: float, session: str) -> float:
    """Return the factor of `ModelProfile.calibration_for`. Every request asks for it."""
    by_session: dict[str, list[float]] = {}
    # A release before this one kept no sessions.
    for name, ratio in zip_longest(reversed(sessions), reversed(ratios), fillvalue=""):
        by_session.setdefault(name, []).append(float(ratio))
    own = {"", session, f"{ENLARGED}{session}"}
    worst = [_worst(by_session.pop(name)) for name in own & by_session.keys()]
    others = sorted(_worst(ratios) for name, ratios in by_session.items() if not name.startswith(ENLARGED))
    if len(others) == 1:
        others = [min(others[0], _MOST_OF_ONE * guessed)]
    return max(worst + others[-2:][:1], default=guessed)


def _worst(ratios: Sequence[float]) -> float:
    """Return the second largest ratio, or the largest if there are fewer than `_ENOUGH`."""
    ordered = sorted(ratios)
    return ordered[-2] if len(ordered) >= _ENOUGH else ordered[-1]


def after_media_refusal(known: ModelProfile, stated: MediaLimits, now: float) -> ModelProfile:
    """Return the profile updated with the limits that a refusal of media states."""
    most = known.media_limits(now).at_most(stated)
    return msgspec.structs.replace(known, media_bytes=most.bytes, pictures=most.pictures, media_at=now)


def binds_thinking(model: str) -> bool:
    """Whether a model is known to, by its name (platform.claude.com, "Preserved thinking"); others are learned."""
    return _is_since(_BINDING_SINCE, model)


def first_calibration(model: str) -> float:
    """What to multiply estimates with before anything was billed: Claude's tokens are smaller than those we count, and
    smaller again in its newer models (platform.claude.com, "Token counting")."""
    if "claude" not in model.lower():
        return 1.0
    return 1.5 if _is_since(_SMALLER_SINCE, model) else 1.2


def _is_since(versions: Mapping[str, tuple[int, int]], model: str) -> bool:
    """Whether a Claude model is of this version of its family or later."""
    found = _NAMED.search(model.lower())
    if found is None:
        return False
    version = int(found["major"]), int(found["minor"] or 0)
    return version >= versions.get(found["family"], _NEVER)


def coarse(tokens: int) -> int:
    """The next power of two from 256 on: so that not every answer is news to the other replicas."""
    return max(256, 1 << max(0, tokens - 1).bit_length())


def longest_answer(answers: Sequence[int]) -> int | None:
    """Of those seen lately; None where too few were to go by."""
    return max(answers) if len(answers) >= _ENOUGH else None


def with_answer(answers: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    """The newest answers, with one more of so many tokens."""
    return (*answers, coarse(tokens))[-ANSWERS:]


def after_overflow(
    known: ModelProfile, stated: StatedLimit, estimated: int, now: float, session: str = ""
) -> ModelProfile:
    """Return the profile updated with the refusal of a session's prompt of `estimated` tokens."""
    if stated.input_tokens is not None and not stated.is_lower_bound:
        known = after_bill(known, estimated, stated.input_tokens, session)
    if stated.limit is None or stated.limit <= 0 or not stated.learnable:
        return _profile_after_refusal(known, None, now)
    known = _profile_after_refusal(known, known.limit_at(now), now)
    learned_at = now if stated.holds is None else now - LEARNED_TTL + stated.holds
    return msgspec.structs.replace(known, limit=stated.limit, of_prompt=stated.kind == "input", learned_at=learned_at)


def shrunk(known: ModelProfile, stated: StatedLimit, refused: int, now: float) -> ModelProfile:
    """After a smaller prompt was taken in the place of one of `refused` tokens of our estimate.

    Only then is it known that its size was what was refused. Where a limit was stated, that is the better lesson.
    """
    if stated.limit is not None:
        return known
    of_bytes = stated.share_of_bytes
    seconds = FIRST_CEILING_TTL if known.ceiling is None and of_bytes is None else LEARNED_TTL
    known = _profile_after_refusal(known, known.ceiling_at(now), now)
    if of_bytes is not None:
        # A limit of bytes is no whim: what is larger would be sent for nothing.
        known = msgspec.structs.replace(known, trials=_MOST_DOUBLINGS)
    ceiling = int(_CEILING * refused * (of_bytes or 1))
    if (lower := known.ceiling) is not None and now < known.ceiling_until:
        ceiling = min(ceiling, lower)
    return msgspec.structs.replace(known, ceiling=ceiling, ceiling_until=now + seconds)


def _profile_after_refusal(known: ModelProfile, held: int | None, now: float) -> ModelProfile:
    """After a refusal: one more trial in vain where a lesson held that was due to be tried."""
    trials = known.trials + 1 if held is not None and known.is_trial_due(now) else known.trials
    return msgspec.structs.replace(known, refused_at=now, trials=trials)


def rose(known: ModelProfile, estimated: int, real: int) -> ModelProfile:
    """After an answer to a prompt of `estimated` tokens: one that is larger than the ceiling lifts it.

    One that is larger than what was refused, too, disproves it.
    """
    if known.ceiling is None or estimated <= known.ceiling or was_cut_off(estimated, real):
        return known
    is_disproved = _CEILING * estimated >= known.ceiling
    if is_disproved:
        return msgspec.structs.replace(known, ceiling=None, trials=0)
    return msgspec.structs.replace(known, ceiling=estimated)


def after_success(known: ModelProfile, prompt: int, output: int, now: float) -> ModelProfile:
    """After an answer; tokens that a learned limit would not have let through disprove it.

    If it was right after all, the next overflow teaches it again.
    """
    limit = known.limit_at(now)
    if limit is None or prompt + (0 if known.of_prompt else output) <= limit:
        return known
    return msgspec.structs.replace(known, limit=None, trials=0)


def after_bill(known: ModelProfile, estimated: int, real: int, session: str = "") -> ModelProfile:
    """Return the profile updated with the upstream's own count, `real`, of a session's prompt."""
    if estimated < MIN_CALIBRATION_TOKENS or real <= 0:
        return known
    low, high = CALIBRATION_RANGE
    ratios = (*known.ratios, min(max(real / estimated, low), high))[-CALIBRATION_OBSERVATIONS:]
    sessions = (*known.sessions, session)[-CALIBRATION_OBSERVATIONS:]
    cut_off = was_cut_off(estimated, real)
    if (ratios, sessions, cut_off) == (known.ratios, known.sessions, known.cut_off):
        return known
    return msgspec.structs.replace(known, ratios=ratios, sessions=sessions, cut_off=cut_off)


def after_answer(known: ModelProfile, tokens: int) -> ModelProfile:
    """After an answer of so many tokens."""
    answers = with_answer(known.answers, tokens)
    return known if answers == known.answers else msgspec.structs.replace(known, answers=answers)


def was_cut_off(estimated: int, real: int) -> bool:
    """Whether the upstream, without an error, read much less of a prompt than it was sent (Ollama's `num_ctx`)."""
    return estimated >= _CUT_OFF_FROM and 0 < real < _CUT_OFF_BELOW * estimated
