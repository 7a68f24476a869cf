"""`concertina explain`: a table of the decisions for a request, with a stored session's records or without."""

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from policies.conversation.prefix_digests import mark_of
from proxy.admin import why, words
from proxy.callers.tenants import Caller
from proxy.cli.common import fail, plain, print_table
from proxy.cli.session_details import CUTS
from proxy.cli.stored import open_stored
from proxy.compaction.explain import explainer
from proxy.compaction.explain.explanation import (
    WITHOUT_STORE,
    Explanation,
    Fate,
    LeftOutText,
    MessageFate,
    Pinned,
)
from proxy.compaction.plan_input import Mode, Outcome, plan_input_of_pasted
from proxy.config.loading import Config
from proxy.dialects.base import Dialect
from proxy.sessions.index import Session, Target
from proxy.sessions.stores.memory import MemoryStore
from proxy.telemetry.log import open_log
from proxy.upstreams.http import UpstreamClient
from proxy.wiring import open_engine


class _FateColumn(NamedTuple):
    """The words for the fate of a message, and their style."""

    text: str
    style: str


_FATES: dict[Fate, _FateColumn] = {
    "head": _FateColumn("system prompt", "cyan"),
    "kept": _FateColumn("unchanged", "green"),
    "anchor": _FateColumn("kept next to the record", "green"),
    "cooled": _FateColumn("shortened", "blue"),
    "left_out": _FateColumn("media left out", "blue"),
    "summarised": _FateColumn("summarised now", "yellow"),
    "covered": _FateColumn("in the record", "yellow"),
    "dropped": _FateColumn("not sent", "red"),
}
_OUTCOMES: dict[Outcome, str] = {
    "none": "sent unchanged",
    "applied": "compacted",
    "reused": "sent with the stored record",
    "cooled": "sent with shortened results",
    "bypass": "relayed unchanged",
    "pending": "sent unchanged for now",
    "failed-open": "sent unchanged after a failure",
    "shadow": "sent unchanged, in shadow mode",
}
_STDIN = Path("-")
# The maximum number of pinned sentences on the terminal, one line each.
_MOST_TEXTS = 12
_SHOWN = 16


async def explain(
    config: Config, body: bytes, caller: Caller, mode: Mode, dialect: Dialect, session: Session | None = None
) -> Explanation | None:
    """Return the decisions for a request; None if it is not one of the dialect.

    session: the stored session that it continues. Raises InvalidJSONError, StoreError.
    """
    async with AsyncExitStack() as opened:
        store = MemoryStore() if session is None else await opened.enter_async_context(open_stored(config))
        workers = opened.enter_context(ThreadPoolExecutor(1))
        engine = await open_engine(config, store, UpstreamClient(), workers, open_log("error", time.time))
        router = engine.router(config)
        request = await engine.read(body, caller, router, dialect)
        if request is None:
            return None
        target = None if session is None else Target(bytes.fromhex(session.id), mark_of(caller.labels, session.label))
        return await explainer.explain(engine, plan_input_of_pasted(router, caller, mode, request, target), request)


def read_request(file: Path) -> tuple[str, bytes]:
    """Return the name of a request's file, and its bytes. End the process if it cannot be read."""
    if file == _STDIN:
        return "standard input", sys.stdin.buffer.read()
    try:
        return str(file), file.read_bytes()
    except OSError as error:
        fail(f"{file}: {error.strerror}; name a file with one request body, or - for standard input")


def show(explanation: Explanation, console: Console, session: Session | None) -> None:
    """Print the explanation for people: the thresholds, the table of messages, and the verdict."""
    # A file or another program gets complete lines.
    print_line = partial(console.print, soft_wrap=not console.is_terminal)
    for line in (_source(session), *_measures(explanation)):
        print_line(line)
    print_table(_table(explanation.messages), console)
    carried = (*_pins(explanation), *_texts("pinned", explanation.pinned), *_texts("left out", explanation.left_out))
    for line in (*_cut(explanation), *carried, *_verdict(explanation)):
        print_line(line)


def _source(session: Session | None) -> str:
    if session is None:
        return f"{WITHOUT_STORE}; --session ID uses a session's records"
    label = f", {plain(session.label)}" if session.label else ""
    return f"with the stored records of session {session.id[:_SHOWN]}{label}"


def _measures(explanation: Explanation) -> Iterator[str]:
    window, limits = explanation.window, explanation.thresholds
    size = "unknown" if window is None else f"{window.tokens:,} tokens ({window.source}), {explanation.usable:,} usable"
    yield f"{plain(explanation.model) or 'no model'}, policy {explanation.policy}, window {size}"
    if window is not None and limits is not None:
        must = f", whatever it costs from {limits.overflow:,}" if limits.overflow is not None else ""
        yield (
            f"compacted from {limits.compaction:,} tokens{must}; prepared in the background from {limits.soft:,};"
            f" unchanged below {limits.floor:,}"
        )


def _table(messages: Sequence[MessageFate]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("messages", no_wrap=True)
    table.add_column("content")
    for name in ("count", "tokens", "sent"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("why")
    for (fate, cause), group in groupby(messages, key=lambda message: (message.fate, message.why)):
        run = list(group)
        table.add_row(
            f"{run[0].index}-{run[-1].index}" if len(run) > 1 else str(run[0].index),
            _what(run),
            str(len(run)),
            f"{sum(message.tokens for message in run):,}",
            f"{sum(message.tokens_after for message in run):,}",
            Text(_FATES[fate].text, style=_FATES[fate].style),
            cause,
        )
    return table


def _what(run: Sequence[MessageFate]) -> str:
    roles = {message.role for message in run}
    if len(run) == 1:
        only = run[0]
        return f"{only.role} ({plain(only.tool)})" if only.tool else only.role
    if roles <= {"assistant", "tool"} and "tool" in roles:
        return "tool loop"
    return f"{run[0].role} messages" if len(roles) == 1 else "conversation"


def _cut(explanation: Explanation) -> Iterator[str]:
    cut, checkpoint = explanation.cut, explanation.checkpoint
    if checkpoint is not None:
        generation = f"generation {checkpoint.generation}, {checkpoint.names} names"
        yield f"record {checkpoint.digest}: {checkpoint.covered} messages, {generation}"
    if cut is not None:
        rounds = cut.rounds
        yield (
            f"cut before message {cut.index}, {CUTS.get(cut.split_strategy, cut.split_strategy)}:"
            f" {rounds.summarized} of {rounds.total} rounds summarised, {rounds.kept} kept"
        )
    if explanation.record_tokens is not None:
        yield (
            f"replaced by a record of {'at most ' if cut else ''}{explanation.record_tokens:,} tokens, with"
            f" {len(explanation.pinned)} sentences of the user, {explanation.actions} tool calls"
            f" and {explanation.files} changed files"
        )
    if explanation.payoff is not None:
        yield f"{'the record' if cut else 'new short forms'}: {words.payoff(explanation.payoff)}"
    if (reading := explanation.reading) is not None and reading.read:
        yield f"so far {words.reading(reading)}; an early compaction starts at {reading.due:g} times"
    if explanation.media is not None:
        yield words.media(explanation.media, time.time())
    yield from _results(explanation)


def _results(explanation: Explanation) -> Iterator[str]:
    """Yield a line for each message that is changed, and for results that point to missing content."""
    for short in explanation.shortened:
        yield f"message {short.index} without repetitions and padding, {short.tokens} tokens less"
    for text in explanation.restored:
        yield f"message {text.index} with the text of message {text.source}, to which it points, {text.tokens} tokens"
    if explanation.unresolved:
        yield f"{explanation.unresolved} results point to content that is not in the request"
    for recalled in explanation.recalled:
        yield f"message {recalled.index} after {recalled.passages} quotations of it, {recalled.tokens} tokens"


def _pins(explanation: Explanation) -> Iterator[str]:
    for pin in explanation.pins:
        index = "" if pin.index is None else f" in message {pin.index}"
        yield f"pin of the {pin.named_by}{index}: {plain(pin.source)} {'stays' if pin.is_kept else 'does not fit'}"


def _texts(label: str, texts: Sequence[Pinned] | Sequence[LeftOutText]) -> Iterator[str]:
    for text in texts[:_MOST_TEXTS]:
        index = "gone" if text.index is None else text.index
        yield f"  {label} {text.kind} [{index}] {plain(text.text)}"
    if len(texts) > _MOST_TEXTS:
        yield f"  … and {len(texts) - _MOST_TEXTS} more: --json shows all"


def _decision(outcome: Outcome, reason: str) -> str:
    return f"{_OUTCOMES[outcome]}: {why.reason(reason)}"


def _verdict(explanation: Explanation) -> Iterator[str]:
    received, sent, window = explanation.tokens_received, explanation.tokens_sent, explanation.window
    measured = "" if window is None else f" of a {window.tokens:,}-token window's {explanation.usable:,} usable"
    about = "at most " if explanation.cut else ""
    yield _decision(explanation.outcome, explanation.reason)
    if explanation.would is not None:
        yield f"in mode on: {_decision(explanation.would.outcome, explanation.would.reason)}"
    yield f"{received:,}{measured}; would send {about}{sent:,} ({round(100 * sent / max(1, received))} %)"
    if window is None:
        model = plain(explanation.model)
        yield (
            "the window of this model is unknown: a compaction follows only an overflow or the message limit;"
            f' set models: [{{match: "{model}", context_window: TOKENS}}] in the config'
        )
