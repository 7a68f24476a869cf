"""Every public function of `policies` that reads a text takes time in proportion to it, whatever the text is."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import policies
from policies.authorship.arguments import UnreadError
from policies.memo import Memo
from tests.support.timing import cpu_seconds

pytestmark = pytest.mark.slow

# What clients and tools write, by the thousand. {n} is another number in each.
ROWS = [
    "a ",
    "[[ ",
    "$(",
    "((",
    "`",
    "${{a",
    "cat <<A\n",
    "a=$b$b;b=$a$a;",
    "echo x{n} > f{n}.txt; ",
    "Never use port {n}. ",
    "不要用端口{n}。",
    "The staging port is {n}. ",
    "> Never do {n}\n",
    "- [ ] step {n}\n",
    "<a-b>x{n}</a-b>\n",
    "<a-b>\n",
    "<a-b{n}>\n",
    "<a-b{n}>x</a-b{n}>\n",
    "</a-b>\n<a-b>\n",
    "<system-reminder>x{n}</system-reminder>\n",
    "FAILED tests/a.py::t{n}\n",
    "src/a{n}/b.py:12 error E{n}\n",
    "+++ b/f{n}.py\n@@ -1 +1 @@\n-a\n+b\n",
    "*** Update File: f{n}\n@@\n-a\n+b\n",
    "open('f{n}','w').write('x')\n",
    "key{n}: secret{n}abcDEF123\n",
    '{{"a{n}": "b"}}\n',
]
# Some readers read no more than 20,000 characters of a text.
SHORT, LONG = 2_000, 48_000
# Seconds of CPU: what takes less for the long text is quick enough.
_QUICK = 0.15
# 24 times the text; a quadratic reader takes 100 times as long, or 576 times.
_MOST = 48
# A copy of the rest for each row is quadratic too, and so quick that a short text does not show it.
_COPIED = 400_000
_MOST_COPIED = 8
# It reads sentences, of which `read_statement` hands it a bounded part.
_BOUNDED = {"policies.statements.reading.take_apart", "policies.statements.scanning.scan"}


def readers() -> Iterator[tuple[str, Callable[[str], object]]]:
    """Return the public functions that need one argument, a text or a list of texts, by their names."""
    for module in pkgutil.walk_packages(policies.__path__, "policies."):
        for name, function in inspect.getmembers(importlib.import_module(module.name), inspect.isfunction):
            path = f"{module.name}.{name}"
            if name.startswith("_") or function.__module__ != module.name or path in _BOUNDED:
                continue
            parameters = inspect.signature(function).parameters.values()
            required = [parameter for parameter in parameters if parameter.default is parameter.empty]
            annotation = str(getattr(required[0].annotation, "__name__", "")) if len(required) == 1 else ""
            if annotation == "str":
                yield path, function
            elif len(required) == 1 and str(required[0].annotation).endswith(("Sequence[str]", "Iterable[str]")):
                yield path, lambda text, function=function: function([text])  # type: ignore[misc]


def caches() -> Iterator[Callable[[], object]]:
    """Return what empties each cache of `policies`: of what is remembered nothing would be read again."""
    for module in pkgutil.walk_packages(policies.__path__, "policies."):
        for _, value in inspect.getmembers(importlib.import_module(module.name)):
            forget = getattr(value, "cache_clear", None) or (value.forget if isinstance(value, Memo) else None)
            if forget is not None:
                yield forget


READERS = dict(readers())
CACHES = list(caches())


def pumped(row: str, size: int) -> str:
    return "".join(row.format(n=number) for number in range(1_000, 1_000 + size // len(row)))


def read(reader: Callable[[str], object], text: str) -> None:
    for forget in CACHES:
        forget()
    with suppress(ValueError, UnreadError):  # some read a text of one form only
        result = reader(text)
        if inspect.isgenerator(result):
            list(result)


def seconds(reader: Callable[[str], object], text: str, enough: float = 0.0) -> float:
    return cpu_seconds(lambda: read(reader, text), enough=enough)


def test_the_readers_are_found() -> None:
    assert len(READERS) > 40
    assert {"policies.tool_calls.shell.commands_of", "policies.secrets.mask.mask_secrets"} <= READERS.keys()


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_time_in_proportion_to_its_text(name: str) -> None:
    reader = READERS[name]
    for row in ROWS:
        short, long = pumped(row, SHORT), pumped(row, LONG)
        if seconds(reader, long, _QUICK) > _QUICK:
            most = _MOST * seconds(reader, short)
            assert seconds(reader, long, most) <= most, row


@pytest.mark.parametrize("reader", ["heard_in", "heard_in_results"])
@pytest.mark.parametrize(
    "row", ["<system-reminder>\nx</system-reminder>\n", "<user_query>x</user_query>\n", "<a-b>x</a-b>\n", "<a-b>\n"]
)
def test_elements_are_read_without_a_copy_of_the_rest_for_each(reader: str, row: str) -> None:
    read_all = READERS[f"policies.authorship.heard.{reader}"]
    short, long = "x\n" + row * (_COPIED // len(row)), "x\n" + row * (4 * _COPIED // len(row))
    most = max(_QUICK, _MOST_COPIED * seconds(read_all, short))
    assert seconds(read_all, long, most) <= most
