"""Counts are tiktoken's where it can be had, and never an exception, whatever the text."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokenizer import MAX_EXACT_CHARS, SAMPLE_CHARS, SLICE_CHARS, Tokenizer, _count_slice, _slices

ROOT = Path(__file__).parent.parent
O200K = "o200k_base"

PROSE = 'The proxy counts tokens; it has to be quick. Ünïcödé 压缩上下文 👩‍💻 {"a": [1, 2.5e3]}\n' * 1200


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer()


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-4o", "o200k_base"),
        ("openai/gpt-4o-mini-2024-07-18", "o200k_base"),
        ("chatgpt-4o-latest", "o200k_base"),
        ("gpt-4.1-nano", "o200k_base"),
        ("gpt-4.5-preview", "o200k_base"),
        ("gpt-5", "o200k_base"),
        ("gpt-5.1-codex-mini", "o200k_base"),
        ("o1", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("o4-mini-2025-04-16", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("GPT-4-turbo-2024-04-09", "cl100k_base"),
        ("azure/gpt-35-turbo", "cl100k_base"),
        ("gpt-3.5-turbo-0125", "cl100k_base"),
        ("ft:gpt-3.5-turbo-0125:org::id", "cl100k_base"),
        ("text-embedding-3-small", "cl100k_base"),
        ("text-embedding-ada-002", "cl100k_base"),
        ("text-davinci-003", "p50k_base"),
        ("claude-sonnet-4-5", "o200k_base"),
        ("anything/else", "o200k_base"),
        ("", "o200k_base"),
    ],
)
def test_an_encoding_goes_with_a_model(tokenizer: Tokenizer, model: str, encoding: str) -> None:
    assert tokenizer.encoding_for(model) == encoding
    assert tokenizer.encoding_for(model, "override") == "override"


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base", "p50k_base"])
def test_short_texts_are_counted_as_tiktoken_counts_them(tokenizer: Tokenizer, encoding: str) -> None:
    assert tokenizer.is_exact(encoding)
    reference = tiktoken.get_encoding(encoding)
    for text in ("", "a", "Hello, world!", "<|endoftext|>", "压缩上下文", "👩‍👩‍👧‍👦", PROSE[:SLICE_CHARS]):
        assert tokenizer.count(text, encoding) == len(reference.encode_ordinary(text))


def test_slicing_a_long_text_changes_its_count_by_less_than_a_thousandth(tokenizer: Tokenizer) -> None:
    exact = len(tiktoken.get_encoding(O200K).encode_ordinary(PROSE))
    assert exact <= tokenizer.count(PROSE, O200K) <= exact * 1.001


def test_a_text_over_the_cap_is_extrapolated_from_its_beginning(tokenizer: Tokenizer) -> None:
    assert tokenizer.count("word " * (MAX_EXACT_CHARS // 5), O200K) == pytest.approx(400_000, rel=0.001)
    assert tokenizer.count("word " * (MAX_EXACT_CHARS * 2), O200K) == pytest.approx(4_000_000, rel=0.001)
    chinese = "a" * SAMPLE_CHARS + "压" * (MAX_EXACT_CHARS + 1 - SAMPLE_CHARS)
    assert tokenizer.count(chinese, O200K) == pytest.approx(tokenizer.count("a" * SAMPLE_CHARS, O200K) * 4, rel=0.001)


@pytest.mark.parametrize("encoding", ["no_such_encoding", "r50k_base", "../../etc/passwd"])
def test_what_is_not_shipped_is_estimated_and_on_the_high_side_for_prose(tokenizer: Tokenizer, encoding: str) -> None:
    assert not tokenizer.is_exact(encoding)
    assert tokenizer.count("", encoding) == 0
    assert tokenizer.count("x" * 350, encoding) == 110
    assert tokenizer.count("\ud83d", encoding) == 1
    english = "The proxy counts the tokens of every request, and it has to be quick. " * 10
    assert tokenizer.count(english, encoding) > tokenizer.count(english, O200K)


def test_without_litellms_files_everything_is_estimated(tmp_path: Path) -> None:
    assert not Tokenizer(tmp_path).is_exact(O200K)


HOSTILE = {
    "spaces": " " * 1_100_000,
    "tabs": "\t" * 1_100_000,
    "spaces and tabs": " \t" * 550_000,
    "newlines": "\n" * 1_100_000,
    "one letter": "a" * 1_000_000,
    "special tokens": "<|endoftext|>" * 80_000,
    "ideographic spaces": "\u3000" * 1_100_000,
    "joined emoji": "👩\u200d👩\u200d👧\u200d👦" * 150_000,
    "combining marks": "e\u0301\u0302\u0323" * 270_000,
    "lone surrogates": "\ud83d" * 1_000_000,
    "halved pairs": "\ud83d\ude00" * 500_000,
    "nul": "\0" * 1_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
def test_hostile_texts_are_counted_quietly_and_in_bounded_time(
    tokenizer: Tokenizer, name: str, encoding: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenizer.warm(encoding)
    started = time.monotonic()
    assert 0 < tokenizer.count(HOSTILE[name], encoding) <= len(HOSTILE[name]) * 3
    assert time.monotonic() - started < 10
    assert capfd.readouterr() == ("", "")


@given(st.text(st.characters(codec=None), max_size=300))
def test_any_text_is_counted(tokenizer: Tokenizer, text: str) -> None:
    assert 0 <= tokenizer.count(text, O200K) <= len(text) * 4


def test_slices_make_up_the_text_and_split_no_pair() -> None:
    pair = "\ud83d\ude00"
    for text in ("", "a" * SLICE_CHARS, "a" * (SLICE_CHARS - 1) + pair + "b" * SLICE_CHARS, "\ud83d" * 20_000):
        assert "".join(_slices(text)) == text
        assert all(len(piece) <= SLICE_CHARS + 1 for piece in _slices(text))
    assert _slices("a" * (SLICE_CHARS - 1) + pair)[0].endswith(pair)


class PanicException(BaseException):
    """As pyo3 raises it: no Exception, and of a module that cannot be imported."""


class Failing:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def encode_ordinary(self, text: str) -> list[int]:
        raise self._error


def test_a_panic_becomes_an_estimate() -> None:
    assert _count_slice(Failing(PanicException()), "x" * 350) == 110  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_being_told_to_stop_is_no_panic(error: type[BaseException]) -> None:
    with pytest.raises(error):
        _count_slice(Failing(error()), "x")  # type: ignore[arg-type]


def test_several_threads_may_load_and_count_at_once() -> None:
    tokenizer = Tokenizer()
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(tokenizer.count(PROSE, O200K))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) == 8
    assert len(set(counts)) == 1


def test_counting_imports_neither_litellm_nor_anything_that_fetches() -> None:
    script = (
        "import sys; from proxy.tokenizer import Tokenizer; t = Tokenizer(); early = 'tiktoken' in sys.modules;"
        "print(early, t.count('Hello, world!', 'o200k_base'), t.is_exact('o200k_base'),"
        " 'litellm' in sys.modules, 'requests' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.split() == ["False", "4", "True", "False", "False"]
