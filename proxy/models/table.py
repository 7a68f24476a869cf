"""What litellm's table says of models: context windows and prices."""

import re
import threading
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from policies.price import Price

# The part of litellm's that is read here; `make models` takes it over from the litellm that is installed.
TABLE = Path(__file__).parent / "bundled" / "models.json"

MAX_ENTRIES = 1_000
# Names come from the client: longer ones than any real model's are not worth remembering.
MAX_NAME = 256

# 128,000 and 131,072 are one window in two spellings of 128k; the smaller is taken.
SAME_WINDOW = 1.05

# A price that holds for prompts of over so many tokens.
_ABOVE = re.compile(r"input_cost_per_token(?P<step>_above_(?P<thousands>\d+)k_tokens)")
_CHAT_MODES = frozenset({"chat", "responses", "completion"})
_VERSION = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{2}-\d{4}|\d{8}|00\d|latest)$")
# What gateways add for a price or a way of serving, and Ollama for its newest: not another model's window.
_VARIANT = re.compile(r":(?:free|beta|nitro|floor|online|exacto|latest)$")


Source = Literal["policy", "learned", "asked", "table"]


@dataclass(frozen=True, slots=True)
class Window:
    """`tokens` is what prompt and output may take together, or the prompt alone; who said so is `source`."""

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
    """The model without what providers and releases add: `openrouter/openai/gpt-4o-2024-08-06` is `gpt-4o`."""
    name = model.strip().lower().rpartition("/")[2]
    if name.startswith("ft:"):  # ft:gpt-4o-2024-08-06:organisation:name:id
        name = name.split(":")[1]
    return _release(name)


def _release(name: str) -> str:
    return _VERSION.sub("", _VARIANT.sub("", name))


class ModelTable:
    """litellm's model table, from the file that is bundled.

    `load` takes some 30 ms and is thread-safe; call it in a worker thread before the first `lookup`.

    litellm's `max_input_tokens` is the whole window for most models (gpt-4o: 128,000) and the input's share for some
    (gpt-5: 272,000 of 400,000). It is taken as the window for all: for the latter that is on the safe side.
    """

    def __init__(self, path: Path = TABLE) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._loaded = False
        self._exact: dict[str, Window] = {}
        self._bare: dict[str, Window] = {}
        self._prices: dict[str, Price] = {}
        self._found: dict[str, Window | None] = {}
        self._priced: dict[str, Price | None] = {}

    def load(self) -> None:
        """Read the table once; without one every model is unknown, which only means reacting instead of foreseeing."""
        with self._lock:
            if self._loaded:
                return
            self._exact, self._bare, self._prices = _bundled_table() if self._path == TABLE else _read(self._path)
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
            self._found[model] = _row_of(self._exact, model) or self._bare.get(bare_name(model))
        return self._found[model]

    def price(self, model: str) -> Price | None:
        """What the model of this name costs, None where the table does not say."""
        if not self._loaded:
            self.load()
        if (name := model[:MAX_NAME]) not in self._priced:
            if len(self._priced) >= MAX_ENTRIES:
                self._priced.clear()
            self._priced[name] = _row_of(self._prices, name)
        return self._priced[name]


def _row_of(table: dict[str, _V], model: str) -> _V | None:
    """The row of exactly this name, else without its release, its provider, or both."""
    name = model.strip().lower()
    while name:
        for candidate in (name, _VARIANT.sub("", name), _release(name)):
            if (row := table.get(candidate)) is not None:
                return row
        name = name.partition("/")[2]
    return table.get(bare_name(model))


@cache
def _bundled_table() -> _Read:
    """Once for the process."""
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
    above = next((found for name in row if (found := _ABOVE.fullmatch(name))), None)
    dear = _rates(row, above["step"]) if above else None
    if price is None or above is None or dear is None:
        return price
    return replace(price, above=1_000 * int(above["thousands"]), dear=dear)


def _rates(row: _Row, step: str) -> Price | None:
    """What the table says of prompts of any size, or of those beyond a step; what a cache takes or serves costs what
    all else does where it says nothing of it."""

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
