"""Counts are tiktoken's where it can be had, and never an exception, whatever the text."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from proxy.models.encodings import read_tokenizer
from proxy.models.tokenizer import (
    INLINE_BYTES,
    MAX_EXACT_CHARS,
    MEMO_CHARS,
    SAMPLE_CHARS,
    SLICE_CHARS,
    Tokenizer,
    _count_slice,
    _slices,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
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
        ("claude-2.1", "claude"),
        ("anthropic/claude-instant-1.2", "claude"),
        ("deepseek/deepseek-chat", "o200k_base"),
        ("anything/else", "o200k_base"),
        ("", "o200k_base"),
    ],
)
def test_an_encoding_goes_with_a_model(tokenizer: Tokenizer, model: str, encoding: str) -> None:
    assert tokenizer.encoding_for(model) == encoding
    assert tokenizer.encoding_for(model, "override") == "override"


@pytest.mark.parametrize(
    ("model", "override", "own"),
    [
        ("gpt-4o", None, True),
        ("claude-2.1", None, True),
        ("claude-sonnet-4-5", None, False),
        ("deepseek-chat", None, False),
        ("deepseek-chat", "/models/tokenizer.json", True),
        ("our-gpt", "o200k_base", True),
        ("claude-sonnet-4-5", "claude", False),
        ("claude-2.1", "claude", True),
    ],
)
def test_only_a_models_own_tokenizer_is_exact(model: str, override: str | None, own: bool) -> None:
    assert Tokenizer.knows(model, override) is own


@pytest.fixture(scope="module")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer of single bytes, with the pattern of Llama 3 and GPT-4, and cutting at 16 tokens as trainers do."""
    from tokenizers import Regex, models, pre_tokenizers
    from tokenizers import Tokenizer as Made

    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    alphabet = {sign: i for i, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Made(models.BPE(alphabet, []))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.enable_truncation(16)
    made.enable_padding(length=64)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return str(path)


def test_a_tokenizer_json_counts_as_it_says_but_neither_cuts_nor_pads(tokenizer_json: str) -> None:
    tokenizer = Tokenizer()
    assert tokenizer._load(tokenizer_json).encoding is not None
    assert tokenizer.count("", tokenizer_json) == 0
    assert tokenizer.count("Hello", tokenizer_json) == 5
    assert tokenizer.count("Hello, 世界! " * 10_000, tokenizer_json) == 150_000
    assert tokenizer.count("halved \ud83d pair", tokenizer_json) == 15


def test_claudes_published_tokenizer_counts(tokenizer: Tokenizer) -> None:
    assert tokenizer._load("claude").encoding is not None
    assert tokenizer.count("Hello, world!", "claude") == 4
    assert tokenizer.count(PROSE, "claude") == pytest.approx(tokenizer.count(PROSE, O200K), rel=0.3)


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", "\0", '{"model": {"type": "BPE"}}'])
def test_what_is_no_tokenizer_json_is_told_and_estimated(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=r"does not exist|not a tokenizer"):
        read_tokenizer(file)
    assert Tokenizer().count("x" * 350, str(file)) == 110


def test_a_slow_encoding_stalls_an_event_loop_no_longer_than_a_quick_one(tokenizer: Tokenizer) -> None:
    for encoding in (O200K, "claude"):
        tokenizer.warm(encoding)
    assert tokenizer.is_quick(INLINE_BYTES, O200K)
    assert not tokenizer.is_quick(INLINE_BYTES, "claude")
    assert tokenizer.is_quick(INLINE_BYTES // 5, "claude")
    assert not Tokenizer().is_quick(1, O200K)


def test_a_short_text_is_counted_once_and_a_long_one_is_not_kept() -> None:
    tokenizer = Tokenizer()
    tokenizer.warm(O200K)
    loaded = tokenizer._loaded[O200K]
    for text in ("a line", "a line", "x" * (MEMO_CHARS + 1), "x" * (MEMO_CHARS + 1)):
        tokenizer.count(text, O200K)
    info = loaded.short.cache_info()
    assert (info.hits, info.misses) == (1, 1)
    assert tokenizer.count("a line", "cl100k_base") == 2
    for i in range(20_000):
        tokenizer.count(str(i), O200K)
    assert loaded.short.cache_info().currsize == info.maxsize


@pytest.mark.requirement("R1 4.3 count")
@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base", "p50k_base"])
def test_short_texts_are_counted_as_tiktoken_counts_them(tokenizer: Tokenizer, encoding: str) -> None:
    assert tokenizer._load(encoding).encoding is not None
    reference = tiktoken.get_encoding(encoding)
    for text in ("", "a", "Hello, world!", "<|endoftext|>", "压缩上下文", "👩‍👩‍👧‍👦", PROSE[:SLICE_CHARS]):
        assert tokenizer.count(text, encoding) == len(reference.encode_ordinary(text))


def test_slicing_a_long_text_changes_its_count_by_less_than_a_thousandth(tokenizer: Tokenizer) -> None:
    exact = len(tiktoken.get_encoding(O200K).encode_ordinary(PROSE))
    assert exact <= tokenizer.count(PROSE, O200K) <= exact * 1.001


@pytest.mark.requirement("R1 4.3 count")
def test_a_text_over_the_cap_is_extrapolated_from_its_beginning(tokenizer: Tokenizer) -> None:
    assert tokenizer.count("word " * (MAX_EXACT_CHARS // 5), O200K) == pytest.approx(400_000, rel=0.001)
    assert tokenizer.count("word " * (MAX_EXACT_CHARS * 2), O200K) == pytest.approx(4_000_000, rel=0.001)
    chinese = "a" * SAMPLE_CHARS + "压" * (MAX_EXACT_CHARS + 1 - SAMPLE_CHARS)
    assert tokenizer.count(chinese, O200K) == pytest.approx(tokenizer.count("a" * SAMPLE_CHARS, O200K) * 4, rel=0.001)


@pytest.mark.parametrize("encoding", ["no_such_encoding", "r50k_base", "../../etc/passwd"])
def test_what_is_not_shipped_is_estimated_and_on_the_high_side_for_prose(tokenizer: Tokenizer, encoding: str) -> None:
    assert tokenizer._load(encoding).encoding is None
    assert tokenizer.count("", encoding) == 0
    assert tokenizer.count("x" * 350, encoding) == 110
    assert tokenizer.count("\ud83d", encoding) == 1
    english = "The proxy counts the tokens of every request, and it has to be quick. " * 10
    assert tokenizer.count(english, encoding) > tokenizer.count(english, O200K)


@pytest.mark.requirement("R3 6.1 counting")
def test_without_litellms_files_everything_is_estimated(tmp_path: Path) -> None:
    assert Tokenizer(tmp_path)._load(O200K).encoding is None


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
@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base", "claude", "tokenizer.json"])
def test_hostile_texts_are_counted_quietly_and_in_bounded_time(
    tokenizer: Tokenizer, name: str, encoding: str, tokenizer_json: str, capfd: pytest.CaptureFixture[str]
) -> None:
    encoding = tokenizer_json if encoding == "tokenizer.json" else encoding
    tokenizer.warm(encoding)
    started = time.process_time()
    assert 0 < tokenizer.count(HOSTILE[name], encoding) <= len(HOSTILE[name].encode("utf-8", "surrogatepass"))
    assert time.process_time() - started < 10
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("encoding", [O200K, "claude"])
@given(text=st.text(st.characters(codec=None), max_size=300))
def test_any_text_is_counted(tokenizer: Tokenizer, encoding: str, text: str) -> None:
    assert 0 <= tokenizer.count(text, encoding) <= len(text) * 20  # one sign may stand for a whole phrase, U+FDFA


def test_slices_make_up_the_text_and_split_no_pair() -> None:
    pair = "\ud83d\ude00"
    for text in ("", "a" * SLICE_CHARS, "a" * (SLICE_CHARS - 1) + pair + "b" * SLICE_CHARS, "\ud83d" * 20_000):
        assert "".join(_slices(text)) == text
        assert all(len(piece) <= SLICE_CHARS + 1 for piece in _slices(text))
    assert _slices("a" * (SLICE_CHARS - 1) + pair)[0].endswith(pair)


class PanicException(BaseException):
    """As pyo3 raises it: no Exception, and of a module that cannot be imported."""


def failing(error: BaseException) -> Callable[[str], int]:
    def count(text: str) -> int:
        raise error

    return count


@pytest.mark.requirement("R3 6.1 counting")
@pytest.mark.parametrize("error", [PanicException(), Exception("as tokenizers raises it"), ValueError()])
def test_a_panic_becomes_an_estimate(error: BaseException) -> None:
    assert _count_slice(failing(error), "x" * 350) == 110


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_being_told_to_stop_is_no_failure(error: type[BaseException]) -> None:
    with pytest.raises(error):
        _count_slice(failing(error()), "x")


@pytest.mark.parametrize("encoding", [O200K, "claude"])
@pytest.mark.parametrize("text", [PROSE, PROSE[:MEMO_CHARS]])
def test_several_threads_may_load_and_count_at_once(encoding: str, text: str) -> None:
    tokenizer = Tokenizer()
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(tokenizer.count(text, encoding))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) == 8
    assert len(set(counts)) == 1


def test_counting_imports_neither_litellm_nor_anything_that_fetches() -> None:
    script = (
        "import sys; from proxy.models.tokenizer import Tokenizer; t = Tokenizer();"
        "early = 'tiktoken' in sys.modules or 'tokenizers' in sys.modules;"
        "is_exact = lambda name: t._load(name).encoding is not None;"
        "print(early, t.count('Hello, world!', 'o200k_base'), is_exact('o200k_base'), is_exact('claude'),"
        " *(name in sys.modules for name in ('litellm', 'requests', 'huggingface_hub')))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.split() == ["False", "4", "True", "True", "False", "False", "False"]
