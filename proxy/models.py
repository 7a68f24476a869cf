"""How much each model takes: context windows from litellm's table, and what traffic has taught us about them."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from policies.assembly import Shape
from policies.ladder import StatedLimit

TABLE_FILE = "model_prices_and_context_window_backup.json"

LEARNED_TTL = 24 * 3600.0
MAX_ENTRIES = 1_000
# Names come from the client: longer ones than any real model's are not worth remembering.
MAX_NAME = 256
# Below this, fixed overheads and not the text decide the ratio of real to estimated tokens.
MIN_CALIBRATION_TOKENS = 100
# Never below 1.0: trusting a lower estimate risks an overflow. 6.0 is worse than any script through any tokenizer.
CALIBRATION_RANGE: Final = (1.0, 6.0)
CALIBRATION_OBSERVATIONS = 16

# 128,000 and 131,072 are one window in two spellings of 128k; the smaller is taken.
SAME_WINDOW = 1.05

_CHAT_MODES = frozenset({"chat", "responses", "completion"})
_VERSION = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|latest)$")


@dataclass(frozen=True, slots=True)
class Window:
    """`tokens` is what prompt and output may take together; who said so is `source`."""

    tokens: int
    max_output: int | None
    source: Literal["policy", "learned", "table", "unknown"]


_V = TypeVar("_V")


class _Row(msgspec.Struct):
    """The fields of litellm's table in use; its sample row holds sentences where numbers belong."""

    mode: str | None = None
    max_input_tokens: float | str | None = None
    max_output_tokens: float | str | None = None
    input_cost_per_token: float | str | None = None
    output_cost_per_token: float | str | None = None
    cache_read_input_token_cost: float | str | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars a token; `cached` is for the part of a prompt that the provider's prompt cache holds."""

    prompt: float
    completion: float
    cached: float


def bare_name(model: str) -> str:
    """The model without what providers and releases add: `openrouter/openai/gpt-4o-2024-08-06` is `gpt-4o`."""
    name = model.strip().lower().rpartition("/")[2]
    if name.startswith("ft:"):  # ft:gpt-4o-2024-08-06:organisation:name:id
        name = name.split(":")[1]
    return _VERSION.sub("", name)


class ModelTable:
    """litellm's model table, read as a file: importing litellm costs seconds and 160 MB.

    `load` takes some 30 ms and is thread-safe; call it in a worker thread before the first `lookup`.

    litellm's `max_input_tokens` is the whole window for most models (gpt-4o: 128,000) and the input's share for some
    (gpt-5: 272,000 of 400,000). It is taken as the window for all: for the latter that is on the safe side.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._loaded = False
        self._exact: dict[str, Window] = {}
        self._bare: dict[str, Window] = {}
        self._prices: dict[str, Price] = {}
        self._found: dict[str, Window | None] = {}

    def load(self) -> None:
        """Read the table once; without one every model is unknown, which only means reacting instead of foreseeing."""
        with self._lock:
            if self._loaded:
                return
            rows = _read_rows(self._path or _table_path())
            self._exact = {name.lower(): window for name, row in rows.items() if (window := _window(row))}
            self._bare = _index_bare(self._exact)
            self._prices = {name.lower(): price for name, row in rows.items() if (price := _price(row))}
            self._loaded = True

    def lookup(self, model: str) -> Window | None:
        """The window of the model of exactly this name, else of the one this name can only mean, else None."""
        if not self._loaded:
            self.load()
        if len(model) > MAX_NAME:
            return None
        if model not in self._found:
            if len(self._found) >= MAX_ENTRIES:
                self._found.clear()
            self._found[model] = self._look_up(model)
        return self._found[model]

    def price(self, model: str) -> Price | None:
        """What the model of this name costs, None where the table does not say."""
        if not self._loaded:
            self.load()
        return _named(self._prices, model[:MAX_NAME])

    def _look_up(self, model: str) -> Window | None:
        return _named(self._exact, model) or self._bare.get(bare_name(model))


def _named(table: dict[str, _V], model: str) -> _V | None:
    """The row of exactly this name, else without its release, its provider, or both."""
    name = model.strip().lower()
    while name:
        for candidate in (name, _VERSION.sub("", name)):
            if (row := table.get(candidate)) is not None:
                return row
        name = name.partition("/")[2]
    return table.get(bare_name(model))


def _table_path() -> Path | None:
    spec = importlib.util.find_spec("litellm")
    return Path(spec.origin).parent / TABLE_FILE if spec is not None and spec.origin else None


def _read_rows(path: Path | None) -> dict[str, _Row]:
    if path is None:
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _Row])
    except (OSError, msgspec.MsgspecError):
        return {}


def _window(row: _Row) -> Window | None:
    tokens = _count(row.max_input_tokens)
    if tokens is None or row.mode not in _CHAT_MODES:
        return None
    return Window(tokens, _count(row.max_output_tokens), "table")


def _price(row: _Row) -> Price | None:
    prompt, completion = row.input_cost_per_token, row.output_cost_per_token
    if not isinstance(prompt, int | float) or not isinstance(completion, int | float):
        return None
    cached = row.cache_read_input_token_cost
    return Price(prompt, completion, cached if isinstance(cached, int | float) else prompt)


def _count(value: float | str | None) -> int | None:
    return int(value) if isinstance(value, int | float) and value >= 1 else None


def _index_bare(exact: dict[str, Window]) -> dict[str, Window]:
    """Windows by bare name, where all providers and releases agree; else the name alone does not tell."""
    found: dict[str, list[Window]] = {}
    for name, window in exact.items():
        found.setdefault(bare_name(name), []).append(window)
    smallest = {name: min(windows, key=lambda window: window.tokens) for name, windows in found.items()}
    return {
        name: window
        for name, window in smallest.items()
        if all(other.tokens <= window.tokens * SAME_WINDOW for other in found[name])
    }


@dataclass(slots=True)
class _Experience:
    """What one model at one upstream has shown."""

    limit: int | None = None
    learned_at: float = 0.0
    shape: Shape = "separate"
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=CALIBRATION_OBSERVATIONS))

    def learned(self, now: float) -> int | None:
        return self.limit if now - self.learned_at < LEARNED_TTL else None


class Windows:
    """The window to plan with, from policy, experience and the table; per process, bounded, for one event loop.

    `now` is seconds of any clock that only goes forward.
    """

    def __init__(self, table: ModelTable, max_entries: int = MAX_ENTRIES) -> None:
        self._table = table
        self._max_entries = max_entries
        self._experiences: OrderedDict[tuple[str, str], _Experience] = OrderedDict()

    def resolve(self, upstream: str, model: str, configured: int | None, now: float) -> Window | None:
        """The configured window, else the learned, else the table's, else None.

        A learned limit below the configured one wins: the upstream has refused what the configuration promised.
        """
        experience = self._recall(upstream, model)
        learned = experience.learned(now) if experience else None
        listed = self._table.lookup(model)
        max_output = listed.max_output if listed else None
        if learned is not None and (configured is None or learned < configured):
            return Window(learned, max_output, "learned")
        if configured is not None:
            return Window(configured, max_output, "policy")
        return listed

    def learn(self, upstream: str, model: str, limit: int, now: float) -> None:
        """Take the limit an overflow error has named; the newest holds, for a day."""
        if limit > 0 and (experience := self._remember(upstream, model)):
            experience.limit, experience.learned_at = limit, now

    def saw_overflow(self, upstream: str, model: str, stated: StatedLimit, estimated: int, now: float) -> None:
        """Take what an overflow of a prompt of `estimated` tokens taught: the window, and how the upstream counts."""
        if stated.limit is not None:
            self.learn(upstream, model, stated.limit, now)
        if stated.input_tokens is not None:
            self.calibrate(upstream, model, estimated, stated.input_tokens)

    def shape(self, upstream: str, model: str) -> Shape:
        """How a record goes to this model: beside the next user message, unless its template refused that."""
        experience = self._recall(upstream, model)
        return experience.shape if experience else "separate"

    def saw_shape(self, upstream: str, model: str, shape: Shape) -> None:
        """Take the shape that a template accepted after it had refused another."""
        if experience := self._remember(upstream, model):
            experience.shape = shape

    def forget(self, upstream: str, model: str) -> None:
        """Drop the learned limit."""
        if experience := self._recall(upstream, model):
            experience.limit = None

    def saw_success(self, upstream: str, model: str, tokens: int, now: float) -> None:
        """Drop a learned limit that a prompt of `tokens` real tokens has just disproved; if it was right after all,
        the next overflow teaches it again.
        """
        experience = self._recall(upstream, model)
        limit = experience.learned(now) if experience else None
        if limit is not None and tokens > limit:
            self.forget(upstream, model)

    def calibrate(self, upstream: str, model: str, estimated: int, real: int) -> None:
        """Note how many tokens the upstream billed for a prompt that was estimated."""
        if estimated >= MIN_CALIBRATION_TOKENS and real > 0 and (experience := self._remember(upstream, model)):
            low, high = CALIBRATION_RANGE
            experience.ratios.append(min(max(real / estimated, low), high))

    def price(self, model: str) -> Price | None:
        return self._table.price(model)

    def calibration(self, upstream: str, model: str) -> float:
        """What to multiply estimates with: the worst of the recent observations, 1.0 without any."""
        experience = self._recall(upstream, model)
        return max(experience.ratios, default=1.0) if experience else 1.0

    def _recall(self, upstream: str, model: str) -> _Experience | None:
        experience = self._experiences.get((upstream, model))
        if experience is not None:
            self._experiences.move_to_end((upstream, model))
        return experience

    def _remember(self, upstream: str, model: str) -> _Experience | None:
        if len(model) > MAX_NAME:
            return None
        experience = self._experiences.setdefault((upstream, model), _Experience())
        self._experiences.move_to_end((upstream, model))
        if len(self._experiences) > self._max_entries:
            self._experiences.popitem(last=False)
        return experience
