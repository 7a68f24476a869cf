"""The context window of every model at every upstream, and the facts learned from traffic."""

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

# The interval in seconds to read what other replicas have learned.
REFRESH = 60.0
# The lifetime of an upstream's statement about its models, in seconds.
ASKED_TTL = 6 * 3600.0

_OWNER_DIGITS = 32
# The maximum sessions whose response lengths and overflows are remembered in this process.
_SESSION_DIGITS = 4
_SESSIONS = 5_000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ModelProfile).decode
NOTHING = ModelProfile()
# Anthropic's beta for wider windows, without its date (platform.claude.com, "Context windows").
_VARIANTS = {"context-1m": 1_000_000}


class ModelKey(msgspec.Struct, frozen=True):
    """A model at an upstream, for one caller: accounts and learned facts differ between keys.

    owner:   hex digits of the caller's scope. variant: a part of the request that selects another window of the model.
    """

    tenant: str
    owner: str
    base_url: str
    model: str
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Sources:
    """A model's window by source. `window` is the one in force. None means unknown."""

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
    """Windows from config, experience, the upstreams and the table. One instance per process.

    Learned facts are kept here, bounded, and shared through the store, where the last writer wins. Best effort.
    """

    def __init__(
        self,
        table: ModelTable,
        sealed: SealedStore,
        clock: Callable[[], float],
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        """Create windows. `clock` returns Unix seconds."""
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
        """Increases with every new fact about any model."""

    def resolve(self, model_key: ModelKey, configured: int | None) -> Window | None:
        """Return the window: configured, or else learned, or stated by the upstream, or in the table; None otherwise.

        A learned limit below the configured one wins: the upstream has refused the configured size. So does a refused
        size without a stated number, whatever the source. After a while the larger size is tried again.
        """
        experience, now = self.experience(model_key), self._clock()
        window, ceiling = self._window_stated(model_key, configured, experience, now), experience.ceiling_at(now)
        if ceiling is None or (window is not None and (window.tokens <= ceiling or experience.is_trial_due(now))):
            return window
        return Window(ceiling, window.max_output if window else None, "learned", of_prompt=True)

    def _window_stated(
        self, model_key: ModelKey, configured: int | None, known: ModelProfile, now: float
    ) -> Window | None:
        listed = self._window_listed(model_key)
        max_output = listed.max_output if listed else None
        learned = known.limit_at(now)
        if learned is not None and (configured is None or (learned < configured and not known.is_trial_due(now))):
            return Window(learned, max_output, "learned", known.of_prompt)
        if configured is not None:
            return Window(configured, max_output, "policy")
        if (stated := self._window_learned(model_key, now)) is not None:
            return Window(stated, max_output, "asked")
        return listed

    def _window_listed(self, model_key: ModelKey) -> Window | None:
        listed = self._table.lookup(model_key.model)
        wider = _VARIANTS.get(model_key.variant.rpartition("-")[0])
        return listed if listed is None or wider is None else replace(listed, tokens=max(wider, listed.tokens))

    def _window_learned(self, model_key: ModelKey, now: float) -> int | None:
        if model_key.variant:  # lists state the window without the variant
            return None
        at, windows = self._asked.get(model_key.base_url, (0.0, {}))
        return windows.get(model_key.model) if now - at < ASKED_TTL else None

    def sources(self, model_key: ModelKey, configured: int | None) -> Sources:
        """Return the window of each source, and the one in force."""
        experience, now = self.experience(model_key), self._clock()
        listed = self._window_listed(model_key)
        return Sources(
            place=model_key,
            window=self.resolve(model_key, configured),
            configured=configured,
            learned=min(filter(None, (experience.limit_at(now), experience.ceiling_at(now))), default=None),
            asked=self._window_learned(model_key, now),
            listed=listed.tokens if listed else None,
            calibration=round(experience.calibration, 3),
            experience=experience,
        )

    def places(self) -> list[ModelKey]:
        """Return every model with known facts, the newest last."""
        return list(self._known)

    def forget(self, model_key: ModelKey) -> None:
        """Forget what refusals, responses and usage have taught. `share` spreads it to other replicas."""
        if model_key in self._known:
            self._keep(model_key, _KnownWindow(NOTHING, self._clock(), is_shared=False))
            self._answers = OrderedDict((key, kept) for key, kept in self._answers.items() if key[0] != model_key)
            self._overflowed = OrderedDict((key, kept) for key, kept in self._overflowed.items() if key[0] != model_key)
            self._largest.pop(model_key, None)

    def experience(self, model_key: ModelKey) -> ModelProfile:
        """Return the learned facts of a model."""
        entry = self._known.get(model_key)
        if entry is not None:
            return entry.experience
        guessed = lessons.first_calibration(model_key.model)
        return NOTHING if guessed == 1.0 else ModelProfile(guessed=guessed)

    def is_looked_up(self, model_key: ModelKey) -> bool:
        """Return True if the facts of other replicas were read recently."""
        entry = self._known.get(model_key)
        is_new = entry is not None and (not entry.is_shared or self._clock() - entry.looked_up < REFRESH)
        return is_new or len(model_key.model) > MAX_NAME

    async def look_up(self, model_key: ModelKey) -> None:
        """Read what other replicas have learned, at intervals. Own unshared facts stay."""
        if self.is_looked_up(model_key):
            return
        key, now = _key(model_key), self._clock()
        (stored,) = await self._sealed.read_many([key], _decode)
        experience = stored or self.experience(model_key)
        self._keep(model_key, _KnownWindow(experience, now))

    async def share(self, model_key: ModelKey) -> None:
        """Store the facts for the other replicas."""
        entry = self._known.get(model_key)
        if entry is not None and not entry.is_shared:
            entry.is_shared = True
            key = _key(model_key)
            await self._sealed.put(key, _encode(entry.experience))

    def has_news(self, model_key: ModelKey) -> bool:
        """Return True if there are facts that are not shared."""
        entry = self._known.get(model_key)
        return entry is not None and not entry.is_shared

    def learned_from_upstream(self, base_url: str, windows: Mapping[str, int]) -> None:
        """Store an upstream's statement about its models' windows. An empty one counts too."""
        remember(self._asked, base_url, (self._clock(), windows), self._max_entries)
        self.changes += 1

    def saw_overflow(self, model_key: ModelKey, stated: StatedLimit, estimated: int, session: bytes = b"") -> None:
        """Learn from the refusal of a session's prompt of `estimated` tokens."""
        experience = self.experience(model_key)
        self._take(
            model_key, lessons.after_overflow(experience, stated, estimated, self._clock(), session_key(session))
        )

    def saw_shrunk(self, model_key: ModelKey, session: bytes, stated: StatedLimit, refused: int) -> None:
        """Learn that a smaller prompt of a session was accepted after one of `refused` tokens was refused."""
        if len(model_key.model) <= MAX_NAME:
            remember(self._overflowed, (model_key, session), None, _SESSIONS)
        self._take(model_key, lessons.after_smaller_retry(self.experience(model_key), stated, refused, self._clock()))

    def has_overflowed(self, model_key: ModelKey, session: Callable[[], bytes]) -> bool:
        """Return True if this process saw a smaller prompt of a session accepted after an overflow.

        `session` returns its name, which takes some time.
        """
        return bool(self._overflowed) and (model_key, session()) in self._overflowed

    def saw_answer(
        self,
        model_key: ModelKey,
        session: bytes,
        estimated: int,
        prompt: int,
        output: int,
        *,
        is_enlarged: bool = False,
        is_held_long: bool = False,
    ) -> None:
        """Learn from a response in a session.

        estimated, prompt: the tokens of its prompt, estimated and as billed. output: the tokens of the response.
        is_enlarged: True if the provider may have added to the prompt, so that the bill says nothing about other
        sessions.
        is_held_long: True if its cache keeps the prompt for an hour.
        """
        _, was_long = self._answered.get((model_key, session), (0.0, False))
        remember(self._answered, (model_key, session), (self._clock(), is_held_long or was_long), _SESSIONS)
        name = f"{lessons.ENLARGED}{session_key(session)}" if is_enlarged else session_key(session)
        learned = lessons.after_bill(self.experience(model_key), estimated, prompt, name)
        learned = lessons.after_larger_prompt(
            lessons.after_success(learned, prompt, output, self._clock()), estimated, prompt
        )
        if output > 0:
            key = model_key, session
            remember(self._answers, key, lessons.with_answer(self._answers.get(key, ()), output), _SESSIONS)
            learned = lessons.after_answer(learned, output)
        self._take(model_key, learned)

    def saw_taken(self, model_key: ModelKey, tokens: int) -> None:
        """Learn that a prompt of so many estimated tokens got a response that is not empty."""
        if tokens > self._largest.get(model_key, 0):
            remember(self._largest, model_key, tokens, self._max_entries)

    def largest_answered(self, model_key: ModelKey) -> int:
        """Return the tokens of the largest prompt that was answered there, in this process."""
        return self._largest.get(model_key, 0)

    def was_answered_lately(self, model_key: ModelKey, session: bytes) -> bool:
        """Return True if a session had a response within the lifetime of a provider's cache."""
        at, _ = self._answered.get((model_key, session), (0.0, False))
        return not is_gone(self._clock() - at)

    def is_cold(self, model_key: ModelKey, session: bytes) -> bool:
        """Return True if the last response here is so old that the provider's cache has dropped the prompt.

        False if this process has seen no response: another one may have.
        """
        answered = self._answered.get((model_key, session))
        return answered is not None and is_gone(self._clock() - answered[0], is_long=answered[1])

    def may_try_larger(self, model_key: ModelKey) -> bool:
        """Return True if enough time has passed since an overflow to try a prompt of that size again."""
        experience = self.experience(model_key)
        return experience.refused_at > 0 and experience.is_trial_due(self._clock())

    def longest_answer(self, model_key: ModelKey, session: bytes) -> int | None:
        """Return the tokens of a session's longest recent response, or else of the model's; None if unknown."""
        own = lessons.longest_answer(self._answers.get((model_key, session), ()))
        return own if own is not None else lessons.longest_answer(self.experience(model_key).answers)

    def saw_shape(self, model_key: ModelKey, shape: Shape) -> None:
        """Learn the shape that a template accepted after it had refused another."""
        self._take(model_key, msgspec.structs.replace(self.experience(model_key), shape=shape))

    def saw_usage_refused(self, model_key: ModelKey) -> None:
        """Learn that the upstream refuses requests for the usage of streams."""
        self._take(model_key, msgspec.structs.replace(self.experience(model_key), tells_usage=False))

    def saw_marks_refused(self, model_key: ModelKey) -> None:
        """Learn that the upstream refuses cache marks."""
        self._take(model_key, msgspec.structs.replace(self.experience(model_key), takes_marks=False))

    def saw_sealed_refused(self, model_key: ModelKey, session: bytes) -> None:
        """Learn that sealed reasoning of a session was refused."""
        remember(self._sealed_refused, (model_key, session), None, _SESSIONS)

    def refuses_sealed(self, model_key: ModelKey, session: Callable[[], bytes]) -> bool:
        """Return True if sealed reasoning of a session was refused, in this process."""
        return bool(self._sealed_refused) and (model_key, session()) in self._sealed_refused

    def saw_thinking_bound(self, model_key: ModelKey) -> None:
        """Learn that thinking is valid only after the prompt that it was made for."""
        self._take(model_key, msgspec.structs.replace(self.experience(model_key), binds_thinking=True))

    def saw_media_limit(self, model_key: ModelKey, stated: MediaLimits) -> None:
        """Learn the limits of bytes and pictures that a refusal states."""
        self._take(model_key, lessons.after_media_refusal(self.experience(model_key), stated, self._clock()))

    def media_limits(self, model_key: ModelKey) -> MediaLimits:
        """Return the learned limits of media."""
        return self.experience(model_key).media_limits(self._clock())

    def saw_copy_refused(self, model_key: ModelKey) -> None:
        """Learn that a changed request was refused but the client's own request was accepted."""
        until = self._clock() + lessons.ORIGINALS
        self._take(model_key, msgspec.structs.replace(self.experience(model_key), originals_until=until))

    def takes_copies(self, model_key: ModelKey) -> bool:
        """Return False for a while after a changed request was refused but its original was accepted."""
        return self._clock() >= self.experience(model_key).originals_until

    def price(self, model: str) -> Price | None:
        """Return the price of a model; None if unknown."""
        return self._table.price(model)

    def _take(self, model_key: ModelKey, learned: ModelProfile) -> None:
        if learned == self.experience(model_key) or len(model_key.model) > MAX_NAME:
            return
        entry = self._known.get(model_key)
        self._keep(model_key, _KnownWindow(learned, entry.looked_up if entry else self._clock(), is_shared=False))

    def _keep(self, model_key: ModelKey, entry: _KnownWindow) -> None:
        remember(self._known, model_key, entry, self._max_entries)
        self.changes += 1


def session_key(session: bytes) -> str:
    """Return the name of a session in a profile. All labels of a conversation share it."""
    return session[:_SESSION_DIGITS].hex()


def place_of(tenant: str, scope: bytes, base_url: str, model: str, variant: str = "") -> ModelKey:
    """Return the key of a model for requests of a caller with this scope."""
    return ModelKey(tenant, scope.hex()[:_OWNER_DIGITS], base_url, model, variant)


def _key(model_key: ModelKey) -> str:
    name = msgspec.json.encode(
        [model_key.owner, model_key.base_url, model_key.model, *filter(None, [model_key.variant])]
    )
    return f"learned:{hashlib.sha256(name).hexdigest()}"
