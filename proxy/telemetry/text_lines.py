"""Log lines for people on a terminal, instead of JSON."""

from collections.abc import Mapping

import msgspec

from proxy.telemetry.events import RequestEnded

_THOUSAND = 1_000
_TEN_THOUSAND = 10_000


def printable(text: str) -> str:
    """Return a text on one line, with a space for each control or bidirectional character."""
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)


def text_of(event: str, fields: msgspec.Struct | Mapping[str, object]) -> str:
    """Return an event on one line, without time and level."""
    if isinstance(fields, RequestEnded):
        return request_line(fields)
    values = msgspec.to_builtins(fields)
    return printable(" ".join([event, *(f"{key}={_value(each)}" for key, each in values.items() if each is not None)]))


def request_line(event: RequestEnded) -> str:
    """Return `billing-work gpt-4o 161k → 44.2k of 128k reused (below_threshold) 200 1.4 s`, as far as known."""
    words = [event.label or event.session or f"{event.method} {event.path}", event.model or ""]
    if event.received is not None and event.sent is not None:
        words.append(f"{tokens(event.received)} → {tokens(event.sent)}")
        words.append(f"of {tokens(event.window)}" if event.window else "")
    if event.compaction is not None:
        words.append(f"{event.compaction} ({event.reason})")
    words += [str(event.status), _seconds(event.ms)]
    words.append(event.end if event.end != "complete" else "")
    words += [f"{event.code or ''}", f"cause={event.cause}" if event.cause else ""]
    return printable(" ".join(filter(None, words)))


def tokens(number: int) -> str:
    """Return a number in thousands with at most three digits."""
    if number < _THOUSAND:
        return str(number)
    return f"{number / _THOUSAND:.1f}k" if number < 10 * _TEN_THOUSAND else f"{number / _THOUSAND:.0f}k"


def _seconds(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < _THOUSAND else f"{ms / _THOUSAND:.1f} s"


def _value(value: object) -> str:
    """Return a word unchanged, and anything else as JSON."""
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' "='):
        return value
    return msgspec.json.encode(value).decode()
