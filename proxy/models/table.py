"""Context windows and prices of models from litellm's table."""

import re
import threading
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from policies.price import Price

# The used part of litellm's table. `make models` copies it from the installed litellm.
TABLE = Path(__file__).parent / "bundled" / "models.json"

MAX_ENTRIES = 1_000
# Clients choose names. Longer ones than any real model's are not cached.
MAX_NAME = 256

# 128,000 and 131,072 are the same 128k window. The smaller one is used.
SAME_WINDOW = 1.05

# A price for prompts of more than so many tokens.
_ABOVE = re.compile(r"input_cost_per_token(?P<step>_above_(?P<thousands>\d+)k_tokens)")
_CHAT_MODES = frozenset({"chat", "responses", "completion"})
_VERSION = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{2}-\d{4}|\d{8}|00\d|latest)$")
# Suffixes of gateways for a price or a way of serving, and of Ollama for its newest: the window is the same.
_VARIANT = re.compile(r":(?:free|beta|nitro|floor|online|exacto|latest)$")


Source = Literal["policy", "learned", "asked", "table"]


@dataclass(frozen=True, slots=True)
class Window:
    """A context window.

    tokens: maximum of prompt and output together, or of the prompt only. source: of the number.
    """

    tokens: int
    max_output: int | None
    source: Source
    of_prompt: bool = False


_V = TypeVar("_V")


_Row = dict[str, object]
"""A row of litellm's table."""
_Read = tuple[dict[str, Window], dict[str, Window], dict[str, Price]]
"""Windows by exact and by bare name, and prices."""


def bare_name(model: str) -> str:
    """Return a model's name without provider and release: `openrouter/openai/gpt-4o-2024-08-06` is `gpt-4o`."""
    name = model.strip().lower().rpartition("/")[2]
    if name.startswith("ft:"):  # ft:gpt-4o-2024-08-06:organisation:name:id
        name = name.split(":")[1]
    return _release(name)


def _release(name: str) -> str:
    return _VERSION.sub("", _VARIANT.sub("", name))


class ModelTable:
    """litellm's model table from the bundled file.

    `load` takes some 30 ms and is thread-safe. Call it in a worker thread before the first `lookup`. litellm's
    `max_input_tokens` is the whole window for most models (gpt-4o: 128,000) and the input's share for some (gpt-5:
    272,000 of 400,000). It counts as the window for all, which is safe for the latter.
    """

    def __init__(self, path: Path = TABLE) -> None:
        """Create a table. It is read at the first use."""
        self._path = path
        self._lock = threading.Lock()
        self._loaded = False
        self._exact: dict[str, Window] = {}
        self._bare: dict[str, Window] = {}
        self._prices: dict[str, Price] = {}
        self._found: dict[str, Window | None] = {}
        self._priced: dict[str, Price | None] = {}

    def load(self) -> None:
        """Read the table once. Without it every model is unknown, so overflows are only handled after they happen."""
        with self._lock:
            if self._loaded:
                return
            self._exact, self._bare, self._prices = _bundled_table() if self._path == TABLE else _read(self._path)
            self._loaded = True

    def lookup(self, model: str) -> Window | None:
        """Return the window of the model with exactly this name, or else of the only possible one; None otherwise."""
        if not self._loaded:
            self.load()
        if len(model) > MAX_NAME:
            return None
        if model not in self._found:
            if len(self._found) >= MAX_ENTRIES:
                self._found.clear()
            self._found[model] = _row_of(self._exact, model) or self._bare.get(bare_name(model))
        return self._found[model]

    def price(self, model: str) -> Price | None:
        """Return the price of a model; None if the table has none."""
        if not self._loaded:
            self.load()
        if (name := model[:MAX_NAME]) not in self._priced:
            if len(self._priced) >= MAX_ENTRIES:
                self._priced.clear()
            self._priced[name] = _row_of(self._prices, name)
        return self._priced[name]


def _row_of(table: dict[str, _V], model: str) -> _V | None:
    """Return the row with exactly this name, or else without its release, its provider, or both."""
    name = model.strip().lower()
    while name:
        for candidate in (name, _VARIANT.sub("", name), _release(name)):
            if (row := table.get(candidate)) is not None:
                return row
        name = name.partition("/")[2]
    return table.get(bare_name(model))


@cache
def _bundled_table() -> _Read:
    """Return the bundled table, read once per process."""
    return _read(TABLE)


def _read(path: Path) -> _Read:
    rows = _read_rows(path)
    exact = {name.lower(): window for name, row in rows.items() if (window := _window(row))}
    prices = {name.lower(): price for name, row in rows.items() if (price := _price(row))}
    return exact, _index_bare(exact), prices


def _read_rows(path: Path) -> dict[str, _Row]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _Row])
    except (OSError, msgspec.MsgspecError):
        return {}


def _window(row: _Row) -> Window | None:
    tokens = _count(row.get("max_input_tokens"))
    if tokens is None or row.get("mode") not in _CHAT_MODES:
        return None
    return Window(tokens, _count(row.get("max_output_tokens")), "table")


def _price(row: _Row) -> Price | None:
    price = _rates(row, "")
    above = next((match for name in row if (match := _ABOVE.fullmatch(name))), None)
    dear = _rates(row, above["step"]) if above else None
    if price is None or above is None or dear is None:
        return price
    return replace(price, above=1_000 * int(above["thousands"]), dear=dear)


def _rates(row: _Row, step: str) -> Price | None:
    """Return the prices for prompts of any size, or above a step. Missing cache prices equal the prompt price."""

    def rate(name: str, otherwise: float | None) -> float | None:
        value = row.get(name + step)
        return value if isinstance(value, int | float) else otherwise

    prompt, completion = rate("input_cost_per_token", None), rate("output_cost_per_token", None)
    if prompt is None or completion is None:
        return None
    written = rate("cache_creation_input_token_cost", prompt) or prompt
    return Price(
        prompt,
        completion,
        cached=prompt if (read := rate("cache_read_input_token_cost", None)) is None else read,
        written=written,
        written_long=rate("cache_creation_input_token_cost_above_1hr", written) or written,
    )


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and value >= 1 else None


def _index_bare(exact: dict[str, Window]) -> dict[str, Window]:
    """Return windows by bare name, if all providers and releases agree."""
    windows_by_name: dict[str, list[Window]] = {}
    for name, window in exact.items():
        windows_by_name.setdefault(bare_name(name), []).append(window)
    smallest = {name: min(windows, key=lambda window: window.tokens) for name, windows in windows_by_name.items()}
    return {
        name: window
        for name, window in smallest.items()
        if all(other.tokens <= window.tokens * SAME_WINDOW for other in windows_by_name[name])
    }
