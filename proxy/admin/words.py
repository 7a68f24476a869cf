"""Format numbers, times and names for people."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Protocol

from msgspec import structs

from proxy.callers.issued_keys import KeyLimits
from proxy.compaction.explain.explanation import MediaLeftOut
from proxy.telemetry.events import MediaFigures

UNKNOWN = "–"
LONGEST_NAME = 128
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def exact(number: float | None) -> str:
    """Return all digits of a number: 161,234."""
    return UNKNOWN if number is None else f"{number:,.0f}".replace("-", "−")


def short(number: float | None) -> str:
    """Return three digits of a number: 161 k, 2.1 M, 9,120."""
    if number is None:
        return UNKNOWN
    if abs(number) < 10_000:
        return exact(number)
    unit, sign = next((unit, sign) for unit, sign in _UNITS if abs(number) >= 0.9995 * unit)
    return f"{_three_digits(number / unit)} {sign}".replace("-", "−")


def round_number(number: float) -> str:
    """Return a round number for an axis: 15 k."""
    unit, sign = next(((unit, f" {sign}") for unit, sign in _UNITS if number >= 10 and number >= unit), (1.0, ""))
    return f"{number / unit:g}{sign}"


def _three_digits(number: float) -> str:
    return f"{number:.{2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0}f}"


def share(part: float | None) -> str:
    """Return a share as a percentage: 72 %."""
    if part is None:
        return UNKNOWN
    percent = 100 * part
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.1f} %"


def usd(amount: float | None) -> str:
    """Return an amount of US dollars with cents, or with two digits if it is smaller: $1.24, $0.0031."""
    if amount is None:
        return UNKNOWN
    sign = "−" if amount < 0 else ""
    amount = abs(amount)
    return f"{sign}${amount:,.2f}" if amount >= 0.1 or amount == 0 else f"{sign}${amount:.2g}"


def span(seconds: float | None) -> str:
    """Return a duration in its two largest units: 1 h 12 min, 43 s, 1.4 s, 12 ms."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"
    at = next(at for at, (size, _) in enumerate(_SPANS) if seconds >= size)
    size, unit = _SPANS[at]
    count, remainder = divmod(int(seconds), size)
    smaller, name = (*_SPANS, (1, "s"))[at + 1]
    return f"{count} {unit} {remainder // smaller} {name}" if remainder >= smaller else f"{count} {unit}"


def ago(at: float, now: float) -> str:
    """Return the time since `at`: 3 min ago."""
    return "just now" if now - at < 1 else f"{span(max(1, round(now - at)))} ago"


def moment(at: float) -> str:
    """Return Unix seconds as ISO 8601, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def clock(at: float) -> str:
    """Return the time of day, in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def size(number: float | None) -> str:
    """Return a number of bytes: 4.2 MB."""
    if number is None:
        return UNKNOWN
    unit, sign = next(((unit, f"{sign}B") for unit, sign in _UNITS if number >= unit), (1.0, "bytes"))
    return f"{number:.0f} {sign}" if unit == 1 else f"{_three_digits(number / unit)} {sign}"


def name(text: str) -> str:
    """Return a client's name for something, cut to a bounded length."""
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def setting(value: object) -> str:
    """Return a setting's value as in the config."""
    if value is None:
        return "unset"
    if isinstance(value, list):
        return ", ".join(map(setting, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def plural(number: float, singular: str, plural_noun: str = "") -> str:
    """Return a number with its noun: 1 summary, 3 summaries."""
    return f"{exact(number)} {singular if number == 1 else plural_noun or singular + 's'}"


class Weighed(Protocol):
    """The effect of shortening a prompt, as in `price.Payoff`. None if nothing was shortened."""

    @property
    def removed(self) -> int | None:
        """Return the tokens that later requests are smaller by."""

    @property
    def rewritten(self) -> int | None:
        """Return the tokens that leave the provider's cache."""

    @property
    def pays_after(self) -> int | None:
        """Return the number of requests after which it pays; None if never."""


def payoff(each: Weighed) -> str:
    """Return the effect of shortening in a sentence; empty if nothing was shortened."""
    if each.removed is None:
        return ""
    broken = f"{exact(each.rewritten)} later tokens leave the provider's cache"
    if each.pays_after is None:
        return f"By estimate no later request is smaller, and {broken}."
    pays = f"it pays after {plural(each.pays_after, 'request')}"
    return f"By estimate every later request is {exact(each.removed)} tokens smaller, and {broken}: {pays}."


class Read(Protocol):
    """The tokens read of what a compaction removes, and their cost relative to its price."""

    @property
    def read(self) -> int | None:
        """Return the read tokens."""

    @property
    def read_by(self) -> int | None:
        """Return the number of requests that read them."""

    @property
    def paid(self) -> float | None:
        """Return their cost relative to the compaction's price."""


def reading(each: Read) -> str:
    """Return the reading before a compaction, as its cause."""
    requests = plural(each.read_by or 0, "request")
    read = f"reading the part that a compaction removes ({exact(each.read)} tokens over {requests})"
    return f"{read} had cost {each.paid or 0:g} times the price of the compaction"


def media(figures: MediaLeftOut | MediaFigures, now: float) -> str:
    """Return a sentence about a request's left out media."""
    most = [f"{size(figures.max_bytes)} a request"] if figures.max_bytes is not None else []
    most += [plural(figures.max_pictures, "picture")] if figures.max_pictures is not None else []
    source = (
        f"learned {ago(figures.learned_at, now)}"
        if figures.learned_at is not None
        else _SOURCES.get(figures.source or "")
    )
    by = f" ({source})" if source else ""
    limit = f"; the upstream accepts {' and '.join(most)}{by}" if most else ""
    of = f"{plural(figures.received, 'picture')} and documents" if figures.received != 1 else "1 picture or document"
    gone = figures.left_out if isinstance(figures.left_out, int) else sum(figures.left_out.values())
    return f"{of}, {size(figures.bytes)} in all{limit}. Notes replace {gone} of them."


def limits(of_key: KeyLimits) -> str:
    """Return the limits of a key: 2,000,000 tokens a month, $20.00 a day."""
    set_ones = {name: value for name, value in structs.asdict(of_key).items() if value is not None}
    return ", ".join(_limit(name, value) for name, value in set_ones.items()) or "none"


def _limit(name: str, value: float) -> str:
    unit, _, span = name.partition("_per_")
    return f"{usd(value) if unit == 'usd' else f'{value:,} {unit}'} a {span}"


# The sources of an upstream's limits for media.
_SOURCES = {"config": "set in the config", "provider": "the provider's documented limit", "learned": "learned"}


FILTERS: Mapping[str, Callable[..., str]] = MappingProxyType(
    {
        "exact": exact,
        "short": short,
        "share": share,
        "usd": usd,
        "span": span,
        "ago": ago,
        "moment": moment,
        "clock": clock,
        "size": size,
        "name": name,
        "plural": plural,
        "payoff": payoff,
        "reading": reading,
        "media": media,
        "limits": limits,
        "setting": setting,
    }
)
