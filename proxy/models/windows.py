"""The window to plan with for every model at every upstream, and what traffic has taught about them."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from policies import model_profile as lessons
from policies.decision.assemble import Shape
from policies.decision.media import MediaLimits
from policies.decision.overflow_retries import StatedLimit
from policies.model_profile import LEARNED_TTL, ModelProfile
from policies.price import Price, is_gone
from proxy.lru import remember
from proxy.models.table import MAX_ENTRIES, MAX_NAME, ModelTable, Window
from proxy.sessions.stores.sealing import SealedStore

# Seconds after which what other replicas have learned is looked up again.
REFRESH = 60.0
# What an upstream said about its models, when it was asked, holds for so long.
ASKED_TTL = 6 * 3600.0

_OWNER_DIGITS = 32
# Sessions whose answers are remembered, and those that overflowed, in this process alone.
_SESSION_DIGITS = 4
_SESSIONS = 5_000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ModelProfile).decode
NOTHING = ModelProfile()
# Anthropic's beta for wider windows, without its date (platform.claude.com, "Context windows").
_VARIANTS = {"context-1m": 1_000_000}


class ModelKey(msgspec.Struct, frozen=True):
    """A model at an upstream, for one caller: neither the accounts nor the lessons of two keys are the same.

    owner:   hex digits of the caller's scope.
    variant: what of the request makes it another window of the same model.
    """

    tenant: str
    owner: str
    base_url: str
    model: str
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Sources:
    """What is known of one model's window, source by source; `window` is what holds. None: it does not say."""

    place: ModelKey
    window: Window | None
    configured: int | None
    learned: int | None
    asked: int | None
    listed: int | None
    calibration: float
    experience: ModelProfile


@dataclass(slots=True)
class _KnownWindow:
    experience: ModelProfile
    looked_up: float
    is_shared: bool = True


class Windows:
    """Windows from config, experience, the upstreams themselves and the table; one per process.

    Lessons are kept here, bounded, and shared through the store, where the last to speak wins. Best effort.
    """

    def __init__(
        self,
        table: ModelTable,
        sealed: SealedStore,
        clock: Callable[[], float],
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        """`clock` tells Unix seconds."""
        self._table = table
        self._sealed = replace(sealed, ttl=LEARNED_TTL)
        self._clock = clock
        self._max_entries = max_entries
        self._known: OrderedDict[ModelKey, _KnownWindow] = OrderedDict()
        self._asked: OrderedDict[str, tuple[float, Mapping[str, int]]] = OrderedDict()
        self._answers: OrderedDict[tuple[ModelKey, bytes], tuple[int, ...]] = OrderedDict()
        self._answered: OrderedDict[tuple[ModelKey, bytes], tuple[float, bool]] = OrderedDict()
        self._overflowed: OrderedDict[tuple[ModelKey, bytes], None] = OrderedDict()
        self._sealed_refused: OrderedDict[tuple[ModelKey, bytes], None] = OrderedDict()
        self._largest: OrderedDict[ModelKey, int] = OrderedDict()
        self.changes = 0
        """Goes up whenever something is known that was not, of any place."""

    def resolve(self, place: ModelKey, configured: int | None) -> Window | None:
        """The configured window, else the learned, else what the upstream says, else the table's, else None.

        A learned limit below the configured one wins: the upstream has refused what the configuration promised. So
        does what it has refused without a number, whoever promised more. After a while that is tried again.
        """
        known, now = self.experience(place), self._clock()
        window, ceiling = self._window_stated(place, configured, known, now), known.ceiling_at(now)
        if ceiling is None or (window is not None and (window.tokens <= ceiling or known.is_trial_due(now))):
            return window
        return Window(ceiling, window.max_output if window else None, "learned", of_prompt=True)

    def _window_stated(self, place: ModelKey, configured: int | None, known: ModelProfile, now: float) -> Window | None:
        listed = self._window_listed(place)
        max_output = listed.max_output if listed else None
        learned = known.limit_at(now)
        if learned is not None and (configured is None or (learned < configured and not known.is_trial_due(now))):
            return Window(learned, max_output, "learned", known.of_prompt)
        if configured is not None:
            return Window(configured, max_output, "policy")
        if (told := self._window_learned(place, now)) is not None:
            return Window(told, max_output, "asked")
        return listed

    def _window_listed(self, place: ModelKey) -> Window | None:
        listed = self._table.lookup(place.model)
        wider = _VARIANTS.get(place.variant.rpartition("-")[0])
        return listed if listed is None or wider is None else replace(listed, tokens=max(wider, listed.tokens))

    def _window_learned(self, place: ModelKey, now: float) -> int | None:
        if place.variant:  # lists tell the window that holds without it
            return None
        at, windows = self._asked.get(place.base_url, (0.0, {}))
        return windows.get(place.model) if now - at < ASKED_TTL else None

    def sources(self, place: ModelKey, configured: int | None) -> Sources:
        """What each source says of this window, and which of them wins."""
        known, now = self.experience(place), self._clock()
        listed = self._window_listed(place)
        return Sources(
            place=place,
            window=self.resolve(place, configured),
            configured=configured,
            learned=min(filter(None, (known.limit_at(now), known.ceiling_at(now))), default=None),
            asked=self._window_learned(place, now),
            listed=listed.tokens if listed else None,
            calibration=round(known.calibration, 3),
            experience=known,
        )

    def places(self) -> list[ModelKey]:
        """Every model that something is known of here, the newest last."""
        return list(self._known)

    def forget(self, place: ModelKey) -> None:
        """Take back what refusals, answers and bills have taught, for the other replicas too once it is shared."""
        if place in self._known:
            self._keep(place, _KnownWindow(NOTHING, self._clock(), is_shared=False))
            self._answers = OrderedDict((key, kept) for key, kept in self._answers.items() if key[0] != place)
            self._overflowed = OrderedDict((key, kept) for key, kept in self._overflowed.items() if key[0] != place)
            self._largest.pop(place, None)

    def experience(self, place: ModelKey) -> ModelProfile:
        """What is known here and now."""
        known = self._known.get(place)
        if known is not None:
            return known.experience
        guessed = lessons.first_calibration(place.model)
        return NOTHING if guessed == 1.0 else ModelProfile(guessed=guessed)

    def is_looked_up(self, place: ModelKey) -> bool:
        """Whether what other replicas have learned is known as well, as of late."""
        known = self._known.get(place)
        is_new = known is not None and (not known.is_shared or self._clock() - known.looked_up < REFRESH)
        return is_new or len(place.model) > MAX_NAME

    async def look_up(self, place: ModelKey) -> None:
        """Take what other replicas have learned, once in a while; own lessons that were not shared yet stay."""
        if self.is_looked_up(place):
            return
        key, now = _key(place), self._clock()
        (stored,) = await self._sealed.read_many([key], _decode)
        found = stored or self.experience(place)
        self._keep(place, _KnownWindow(found, now))

    async def share(self, place: ModelKey) -> None:
        """Tell the other replicas what was learned here."""
        known = self._known.get(place)
        if known is not None and not known.is_shared:
            known.is_shared = True
            key = _key(place)
            await self._sealed.put(key, _encode(known.experience))

    def has_news(self, place: ModelKey) -> bool:
        """Whether something was learned that the other replicas do not know."""
        known = self._known.get(place)
        return known is not None and not known.is_shared

    def learned_from_upstream(self, base_url: str, windows: Mapping[str, int]) -> None:
        """Take what an upstream says of its models' windows; nothing is an answer too."""
        remember(self._asked, base_url, (self._clock(), windows), self._max_entries)
        self.changes += 1

    def saw_overflow(self, place: ModelKey, stated: StatedLimit, estimated: int, session: bytes = b"") -> None:
        """Learn from the refusal of a session's prompt of `estimated` tokens."""
        known = self.experience(place)
        self._take(place, lessons.after_overflow(known, stated, estimated, self._clock(), session_key(session)))

    def saw_shrunk(self, place: ModelKey, session: bytes, stated: StatedLimit, refused: int) -> None:
        """Learn that a smaller prompt of a session was accepted after one of `refused` tokens was refused."""
        if len(place.model) <= MAX_NAME:
            remember(self._overflowed, (place, session), None, _SESSIONS)
        self._take(place, lessons.after_smaller_retry(self.experience(place), stated, refused, self._clock()))

    def has_overflowed(self, place: ModelKey, session: Callable[[], bytes]) -> bool:
        """Whether a smaller prompt of a session was taken here in the place of one that was refused, as far as this
        process has seen. `session` names it, which has its price.
        """
        return bool(self._overflowed) and (place, session()) in self._overflowed

    def saw_answer(
        self,
        place: ModelKey,
        session: bytes,
        estimated: int,
        prompt: int,
        output: int,
        *,
        is_enlarged: bool = False,
        is_held_long: bool = False,
    ) -> None:
        """Learn from an answer in a session.

        estimated, prompt: the tokens of its prompt, by our estimate and as billed. output: the tokens of the answer.
        is_enlarged: the provider may have added to the prompt, so the bill says nothing about other sessions.
        is_held_long: its cache has taken the prompt for an hour.
        """
        _, was_long = self._answered.get((place, session), (0.0, False))
        remember(self._answered, (place, session), (self._clock(), is_held_long or was_long), _SESSIONS)
        name = f"{lessons.ENLARGED}{session_key(session)}" if is_enlarged else session_key(session)
        known = lessons.after_bill(self.experience(place), estimated, prompt, name)
        known = lessons.after_larger_prompt(
            lessons.after_success(known, prompt, output, self._clock()), estimated, prompt
        )
        if output > 0:
            key = place, session
            remember(self._answers, key, lessons.with_answer(self._answers.get(key, ()), output), _SESSIONS)
            known = lessons.after_answer(known, output)
        self._take(place, known)

    def saw_taken(self, place: ModelKey, tokens: int) -> None:
        """Learn that a prompt of so many estimated tokens got an answer that is not empty."""
        if tokens > self._largest.get(place, 0):
            remember(self._largest, place, tokens, self._max_entries)

    def largest_answered(self, place: ModelKey) -> int:
        """Return the tokens of the largest prompt that was answered there, as far as this process has seen."""
        return self._largest.get(place, 0)

    def was_answered_lately(self, place: ModelKey, session: bytes) -> bool:
        """Whether a session had an answer within the time for which a provider's cache holds its prompt."""
        at, _ = self._answered.get((place, session), (0.0, False))
        return not is_gone(self._clock() - at)

    def is_cold(self, place: ModelKey, session: bytes) -> bool:
        """Return True if the last answer here is so old that the provider's cache has let go of the prompt.

        False if this process has seen no answer: another one may have.
        """
        answered = self._answered.get((place, session))
        return answered is not None and is_gone(self._clock() - answered[0], is_long=answered[1])

    def may_try_larger(self, place: ModelKey) -> bool:
        """Return True if enough time has passed since an overflow to try a prompt of that size again."""
        known = self.experience(place)
        return known.refused_at > 0 and known.is_trial_due(self._clock())

    def longest_answer(self, place: ModelKey, session: bytes) -> int | None:
        """Return the tokens of a session's longest recent answer, else of the model's; None if too few are known."""
        own = lessons.longest_answer(self._answers.get((place, session), ()))
        return own if own is not None else lessons.longest_answer(self.experience(place).answers)

    def saw_shape(self, place: ModelKey, shape: Shape) -> None:
        """Learn the shape that a template accepted after it had refused another."""
        self._take(place, msgspec.structs.replace(self.experience(place), shape=shape))

    def saw_usage_refused(self, place: ModelKey) -> None:
        """Learn that streams must not be asked for their usage."""
        self._take(place, msgspec.structs.replace(self.experience(place), tells_usage=False))

    def saw_marks_refused(self, place: ModelKey) -> None:
        """Learn that the upstream refuses cache marks."""
        self._take(place, msgspec.structs.replace(self.experience(place), takes_marks=False))

    def saw_sealed_refused(self, place: ModelKey, session: bytes) -> None:
        """Learn that sealed reasoning of a session was refused."""
        remember(self._sealed_refused, (place, session), None, _SESSIONS)

    def refuses_sealed(self, place: ModelKey, session: Callable[[], bytes]) -> bool:
        """Return True if sealed reasoning of a session was refused, as far as this process has seen."""
        return bool(self._sealed_refused) and (place, session()) in self._sealed_refused

    def saw_thinking_bound(self, place: ModelKey) -> None:
        """Learn that thinking is valid only after the prompt that it was made for."""
        self._take(place, msgspec.structs.replace(self.experience(place), binds_thinking=True))

    def saw_media_limit(self, place: ModelKey, stated: MediaLimits) -> None:
        """Learn the limits of bytes and pictures that a refusal states."""
        self._take(place, lessons.after_media_refusal(self.experience(place), stated, self._clock()))

    def media_limits(self, place: ModelKey) -> MediaLimits:
        """Return the learned limits of media."""
        return self.experience(place).media_limits(self._clock())

    def saw_copy_refused(self, place: ModelKey) -> None:
        """Learn that our copy was refused but the client's own request was accepted."""
        until = self._clock() + lessons.ORIGINALS
        self._take(place, msgspec.structs.replace(self.experience(place), originals_until=until))

    def takes_copies(self, place: ModelKey) -> bool:
        """Return False for a while after a changed request was refused but its original was accepted."""
        return self._clock() >= self.experience(place).originals_until

    def price(self, model: str) -> Price | None:
        return self._table.price(model)

    def _take(self, place: ModelKey, learned: ModelProfile) -> None:
        if learned == self.experience(place) or len(place.model) > MAX_NAME:
            return
        known = self._known.get(place)
        self._keep(place, _KnownWindow(learned, known.looked_up if known else self._clock(), is_shared=False))

    def _keep(self, place: ModelKey, known: _KnownWindow) -> None:
        remember(self._known, place, known, self._max_entries)
        self.changes += 1


def session_key(session: bytes) -> str:
    """Return the name of a session in a profile. All labels of a conversation share it."""
    return session[:_SESSION_DIGITS].hex()


def place_of(tenant: str, scope: bytes, base_url: str, model: str, variant: str = "") -> ModelKey:
    """Where the requests of a caller of this scope go."""
    return ModelKey(tenant, scope.hex()[:_OWNER_DIGITS], base_url, model, variant)


def _key(place: ModelKey) -> str:
    name = msgspec.json.encode([place.owner, place.base_url, place.model, *filter(None, [place.variant])])
    return f"learned:{hashlib.sha256(name).hexdigest()}"
