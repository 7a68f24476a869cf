"""Model profiles: what refusals, successes and bills have shown of one model at one upstream, shared by replicas.

A wrong lesson costs at most an early compaction or a handled overflow. So the newest lesson applies, and all of them
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
# Seconds in which only original requests are sent, after an upstream refused a rewritten one for an unknown reason.
ORIGINALS = 600.0
# The share of a prompt refused without a number, above which others count as refused too. Then the seconds for which
# that holds at first. One refusal may be accidental; a second one holds as long as a stated limit.
_CEILING = 0.9
FIRST_CEILING_TTL = 3600.0
# Seconds after a refusal until a prompt that fits a promised larger window is tried again. Each further refusal doubles
# them, up to the life of a lesson.
FIRST_TRIAL = 300.0
_MOST_DOUBLINGS = 10
# Below this, fixed overhead rather than the text decides the ratio of real to estimated tokens.
MIN_CALIBRATION_TOKENS = 100
# Never below 1.0: trusting a lower estimate risks an overflow. 6.0 is worse than any script with any tokenizer.
CALIBRATION_RANGE: Final = (1.0, 6.0)
CALIBRATION_OBSERVATIONS = 16
# With at least this many observations the single worst one is ignored: providers sometimes report nonsense.
_ENOUGH = 4
# The maximum factor from a single other session. Its bills may count more than its requests contain.
_MOST_OF_ONE = 1.25
# Maximum cached calibrations of sessions.
_REMEMBERED = 1_000
# Maximum stored response sizes.
ANSWERS = 16
# A prompt billed at less than this share of the estimate was not read completely ...
_CUT_OFF_BELOW = 0.5
# ... if the estimate is large enough that no overhead explains the difference.
_CUT_OFF_FROM = 1_000
# The first versions of Claude families that bind thinking to its prompt, and that have smaller tokens.
_BINDING_SINCE = {"fable": (5, 1), "mythos": (5, 1), "opus": (5, 5), "sonnet": (5, 5), "haiku": (5, 5)}
_SMALLER_SINCE = {"fable": (5, 0), "mythos": (5, 0), "opus": (4, 7), "sonnet": (5, 0), "haiku": (5, 0)}
_NEVER = (1_000, 0)
# A minor version has one or two digits, a date has eight.
_NAMED = re.compile(r"claude-(?P<family>[a-z]+)-(?P<major>\d{1,2})(?:[.-](?P<minor>\d{1,2}))?(?!\d)")


ENLARGED = "+"


class ModelProfile(msgspec.Struct, frozen=True, omit_defaults=True):
    """The lessons about one model at one upstream.

    learned_at:   Unix seconds of the newest limit.
    limit:        tokens that a refusal has stated. of_prompt: True if for the prompt alone, not for prompt and output.
    ratios:       the newest ratios of real to estimated tokens, at most CALIBRATION_OBSERVATIONS.
    sessions:     the session of each ratio; empty for one that applies to all at once. With the prefix ENLARGED the
    bill
                  does not apply to other sessions.
    shape:        how its chat template accepts a record.
    tells_usage:  True if a stream may request its usage. Some servers refuse such requests.
    takes_marks:  True if it accepts the proxy's cache marks (`cache_control`). Some servers refuse the field.
    cut_off:      True if it last read less of a prompt than was sent.
    guessed:      the ratio before anything was billed.
    originals_until: Unix seconds until which only original requests are sent, since a rewritten one alone was refused.
    binds_thinking: True if it has refused thinking after another prompt than its own.
    answers:      rounded tokens of the newest responses (`coarse`), at most ANSWERS.
    ceiling:      maximum tokens of a prompt in the proxy's estimate, since larger ones were refused without a number.
    ceiling_until: Unix seconds until which it applies.
    refused_at:   Unix seconds of the last refusal of a prompt as too long.
    trials:       larger prompts refused since then when a trial was due.
    media_bytes, pictures: the largest bytes and number of media that refusals have stated.
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
        """Return the learned limits of media unless they have expired."""
        if now - self.media_at >= LEARNED_TTL:
            return NO_MEDIA_LIMITS
        return MediaLimits(self.media_bytes, self.pictures)

    def limit_at(self, now: float) -> int | None:
        """Return the learned limit unless it has expired."""
        return self.limit if now - self.learned_at < LEARNED_TTL else None

    def ceiling_at(self, now: float) -> int | None:
        """Return the maximum prompt in real tokens, if no limit was stated."""
        return int(self.ceiling * self.calibration) if self.ceiling is not None and now < self.ceiling_until else None

    def is_trial_due(self, now: float) -> bool:
        """Return True if a prompt larger than the refused ones should be tried again.

        The upstream's limit may have been temporary. Prompts below it never show that it has changed.
        """
        longer: int = 2 ** min(self.trials, _MOST_DOUBLINGS)
        return now - self.refused_at >= min(LEARNED_TTL, FIRST_TRIAL * longer)

    @property
    def calibration(self) -> float:
        """Return the factor for the estimates of a new session."""
        return self.calibration_for("")

    def calibration_for(self, session: str) -> float:
        """Return the factor for a session's estimates; the first guess if nothing was billed.

        The session's own bills apply at once. Those of another session apply beyond `_MOST_OF_ONE` only if those of a
        second one are as high.
        """
        return _calibration(self.ratios, self.sessions, self.guessed, session) if self.ratios else self.guessed

    @property
    def highest_calibration(self) -> float:
        """Return an upper bound of `calibration_for` for all sessions."""
        return max(self.ratios, default=self.guessed)


@lru_cache(_REMEMBERED)
def _calibration(ratios: tuple[float, ...], sessions: tuple[str, ...], guessed: float, session: str) -> float:
    """Return the factor of `ModelProfile.calibration_for`. Cached because every request needs it."""
    by_session: dict[str, list[float]] = {}
    # Releases before this one stored no sessions.
    for name, ratio in zip_longest(reversed(sessions), reversed(ratios), fillvalue=""):
        by_session.setdefault(name, []).append(float(ratio))
    own = {"", session, f"{ENLARGED}{session}"}
    worst = [_worst(by_session.pop(name)) for name in own & by_session.keys()]
    other_sessions = sorted(_worst(ratios) for name, ratios in by_session.items() if not name.startswith(ENLARGED))
    if len(other_sessions) == 1:
        other_sessions = [min(other_sessions[0], _MOST_OF_ONE * guessed)]
    return max(worst + other_sessions[-2:][:1], default=guessed)


def _worst(ratios: Sequence[float]) -> float:
    """Return the second largest ratio, or the largest of fewer than `_ENOUGH`."""
    ordered = sorted(ratios)
    return ordered[-2] if len(ordered) >= _ENOUGH else ordered[-1]


def after_media_refusal(profile: ModelProfile, stated: MediaLimits, now: float) -> ModelProfile:
    """Return the profile updated with the limits that a refusal of media states."""
    most = profile.media_limits(now).at_most(stated)
    return msgspec.structs.replace(profile, media_bytes=most.bytes, pictures=most.pictures, media_at=now)


def binds_thinking(model: str) -> bool:
    """Return True if a model is known by its name to bind thinking (platform.claude.com, "Preserved thinking")."""
    return _is_since(_BINDING_SINCE, model)


def first_calibration(model: str) -> float:
    """Return the factor for estimates before anything was billed.

    Claude's tokens are smaller than those of the proxy's tokenizer, and smaller again in its newer models
    (platform.claude.com, "Token counting").
    """
    if "claude" not in model.lower():
        return 1.0
    return 1.5 if _is_since(_SMALLER_SINCE, model) else 1.2


def _is_since(versions: Mapping[str, tuple[int, int]], model: str) -> bool:
    """Return True if a Claude model has this version of its family or a later one."""
    match = _NAMED.search(model.lower())
    if match is None:
        return False
    version = int(match["major"]), int(match["minor"] or 0)
    return version >= versions.get(match["family"], _NEVER)


def coarse(tokens: int) -> int:
    """Return the next power of two, at least 256. So not every response has to be sent to the other replicas."""
    return max(256, 1 << max(0, tokens - 1).bit_length())


def longest_answer(answers: Sequence[int]) -> int | None:
    """Return the longest recent response; None if there are too few."""
    return max(answers) if len(answers) >= _ENOUGH else None


def with_answer(answers: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    """Return the newest responses with one more of `tokens`."""
    return (*answers, coarse(tokens))[-ANSWERS:]


def after_overflow(
    profile: ModelProfile, stated: StatedLimit, estimated: int, now: float, session: str = ""
) -> ModelProfile:
    """Return the profile updated with the refusal of a session's prompt of `estimated` tokens."""
    if stated.input_tokens is not None and not stated.is_lower_bound:
        profile = after_bill(profile, estimated, stated.input_tokens, session)
    if stated.limit is None or stated.limit <= 0 or not stated.learnable:
        return _profile_after_refusal(profile, None, now)
    profile = _profile_after_refusal(profile, profile.limit_at(now), now)
    learned_at = now if stated.holds is None else now - LEARNED_TTL + stated.holds
    return msgspec.structs.replace(profile, limit=stated.limit, of_prompt=stated.kind == "input", learned_at=learned_at)


def after_smaller_retry(profile: ModelProfile, stated: StatedLimit, refused: int, now: float) -> ModelProfile:
    """Return the profile after a smaller prompt succeeded in place of one of `refused` tokens by the estimate.

    Only this proves that the size was refused. If a limit was stated, that is the better lesson.
    """
    if stated.limit is not None:
        return profile
    of_bytes = stated.share_of_bytes
    seconds = FIRST_CEILING_TTL if profile.ceiling is None and of_bytes is None else LEARNED_TTL
    profile = _profile_after_refusal(profile, profile.ceiling_at(now), now)
    if of_bytes is not None:
        # A limit of bytes is never temporary: larger requests would be sent in vain.
        profile = msgspec.structs.replace(profile, trials=_MOST_DOUBLINGS)
    ceiling = int(_CEILING * refused * (of_bytes or 1))
    if (lower := profile.ceiling) is not None and now < profile.ceiling_until:
        ceiling = min(ceiling, lower)
    return msgspec.structs.replace(profile, ceiling=ceiling, ceiling_until=now + seconds)


def _profile_after_refusal(profile: ModelProfile, active_lesson: int | None, now: float) -> ModelProfile:
    """Return the profile after a refusal. If an applied `active_lesson` was due for a trial, the trial has failed."""
    trials = profile.trials + 1 if active_lesson is not None and profile.is_trial_due(now) else profile.trials
    return msgspec.structs.replace(profile, refused_at=now, trials=trials)


def after_larger_prompt(profile: ModelProfile, estimated: int, real: int) -> ModelProfile:
    """Return the profile after a success with a prompt of `estimated` tokens. A larger prompt raises the ceiling.

    If it also exceeds the refused size, the ceiling is dropped.
    """
    if profile.ceiling is None or estimated <= profile.ceiling or was_cut_off(estimated, real):
        return profile
    is_disproved = _CEILING * estimated >= profile.ceiling
    if is_disproved:
        return msgspec.structs.replace(profile, ceiling=None, trials=0)
    return msgspec.structs.replace(profile, ceiling=estimated)


def after_success(profile: ModelProfile, prompt: int, output: int, now: float) -> ModelProfile:
    """Return the profile after a success. Tokens beyond a learned limit disprove the limit.

    If the limit was right after all, the next overflow teaches it again.
    """
    limit = profile.limit_at(now)
    if limit is None or prompt + (0 if profile.of_prompt else output) <= limit:
        return profile
    return msgspec.structs.replace(profile, limit=None, trials=0)


def after_bill(profile: ModelProfile, estimated: int, real: int, session: str = "") -> ModelProfile:
    """Return the profile updated with `real`, the upstream's own count of a session's prompt."""
    if estimated < MIN_CALIBRATION_TOKENS or real <= 0:
        return profile
    low, high = CALIBRATION_RANGE
    ratios = (*profile.ratios, min(max(real / estimated, low), high))[-CALIBRATION_OBSERVATIONS:]
    sessions = (*profile.sessions, session)[-CALIBRATION_OBSERVATIONS:]
    cut_off = was_cut_off(estimated, real)
    if (ratios, sessions, cut_off) == (profile.ratios, profile.sessions, profile.cut_off):
        return profile
    return msgspec.structs.replace(profile, ratios=ratios, sessions=sessions, cut_off=cut_off)


def after_answer(profile: ModelProfile, tokens: int) -> ModelProfile:
    """Return the profile after a response of `tokens`."""
    answers = with_answer(profile.answers, tokens)
    return profile if answers == profile.answers else msgspec.structs.replace(profile, answers=answers)


def was_cut_off(estimated: int, real: int) -> bool:
    """Return True if the upstream read much less of a prompt than was sent, without an error (Ollama's `num_ctx`)."""
    return estimated >= _CUT_OFF_FROM and 0 < real < _CUT_OFF_BELOW * estimated
