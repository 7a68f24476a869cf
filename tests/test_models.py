"""Windows by name, and what overflow errors and successes teach about them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from proxy.models import LEARNED_TTL, MAX_NAME, ModelTable, Window, Windows, bare_name

ROOT = Path(__file__).parent.parent

ROWS = {
    "sample_spec": {"mode": "one of: chat, embedding", "max_input_tokens": "max input tokens, if …"},
    "gpt-4o": {"mode": "chat", "max_input_tokens": 128_000, "max_output_tokens": 16_384},
    "gpt-4o-2024-05-13": {"mode": "chat", "max_input_tokens": 128_000, "max_output_tokens": 4_096},
    "github_copilot/gpt-4o": {"mode": "chat", "max_input_tokens": 64_000},
    "azure/eu/alone-2024-01-01": {"mode": "responses", "max_input_tokens": 32_000.0},
    "one/disputed": {"mode": "chat", "max_input_tokens": 8_192},
    "two/disputed-20250101": {"mode": "chat", "max_input_tokens": 16_384},
    "one/oss": {"mode": "chat", "max_input_tokens": 131_072},
    "two/oss": {"mode": "chat", "max_input_tokens": 128_000},
    "an-embedding": {"mode": "embedding", "max_input_tokens": 8_191},
    "no-window": {"mode": "chat", "max_input_tokens": None, "max_output_tokens": 100},
    "zero": {"mode": "chat", "max_input_tokens": 0},
}


@pytest.fixture
def table(tmp_path: Path) -> ModelTable:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(ROWS), encoding="utf-8")
    return ModelTable(path)


@pytest.fixture
def windows(table: ModelTable) -> Windows:
    return Windows(table)


@pytest.mark.parametrize(
    ("model", "bare"),
    [
        ("gpt-4o", "gpt-4o"),
        (" GPT-4o ", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("openrouter/openai/gpt-4o", "gpt-4o"),
        ("claude-3-7-sonnet-20250219", "claude-3-7-sonnet"),
        ("vertex_ai/claude-sonnet-4@20250514", "claude-sonnet-4"),
        ("claude-sonnet-4-5-latest", "claude-sonnet-4-5"),
        ("ft:gpt-4o-mini-2024-07-18:org::id", "gpt-4o-mini"),
        ("gpt-3.5-turbo-0125", "gpt-3.5-turbo-0125"),
        ("gpt-4-32k", "gpt-4-32k"),
        ("ft:", ""),
        ("/", ""),
        ("", ""),
    ],
)
def test_a_bare_name_has_neither_provider_nor_release(model: str, bare: str) -> None:
    assert bare_name(model) == bare


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("gpt-4o", 128_000),
        ("GPT-4O", 128_000),
        ("openai/gpt-4o", 128_000),
        ("openrouter/openai/gpt-4o", 128_000),
        ("github_copilot/gpt-4o", 64_000),
        ("gpt-4o-2024-05-13", 128_000),
        ("gpt-4o-2099-12-31", 128_000),
        ("gpt-4o-latest", 128_000),
        ("ft:gpt-4o-2024-08-06:org::id", 128_000),
        ("alone", 32_000),
        ("elsewhere/alone-20990101", 32_000),
        ("one/disputed", 8_192),
        ("two/disputed", None),
        ("disputed", None),
        ("oss", 128_000),
        ("one/oss", 131_072),
        ("an-embedding", None),
        ("no-window", None),
        ("zero", None),
        ("sample_spec", None),
        ("never-heard-of", None),
        ("", None),
        ("a/" * 40_000, None),
    ],
)
def test_the_table_resolves_a_name_or_says_it_does_not_know(table: ModelTable, model: str, tokens: int | None) -> None:
    window = table.lookup(model)
    assert (window and window.tokens) == tokens


def test_the_table_keeps_the_output_limit_and_says_where_it_is_from(table: ModelTable) -> None:
    assert table.lookup("gpt-4o") == Window(128_000, 16_384, "table")
    assert table.lookup("github_copilot/gpt-4o") == Window(64_000, None, "table")


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{", b'{"gpt-4o": 3}'])
def test_without_a_readable_table_every_model_is_unknown(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "table.json"
    if content is not None:
        path.write_bytes(content)
    assert ModelTable(path).lookup("gpt-4o") is None


def test_the_table_may_be_loaded_by_several_threads_at_once(table: ModelTable) -> None:
    threads = [threading.Thread(target=table.load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.lookup("gpt-4o") is not None


def test_litellms_own_table_is_found_without_importing_litellm() -> None:
    script = (
        "import sys; from proxy.models import ModelTable; t = ModelTable();"
        "print(t.lookup('gpt-4o').tokens, t.lookup('gpt-5').tokens, t.lookup('gpt-4').tokens, 'litellm' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.split() == ["128000", "272000", "8192", "False"]


@pytest.mark.parametrize(
    ("model", "configured", "learned", "expected"),
    [
        ("gpt-4o", None, None, Window(128_000, 16_384, "table")),
        ("gpt-4o", 50_000, None, Window(50_000, 16_384, "policy")),
        ("gpt-4o", None, 8_192, Window(8_192, 16_384, "learned")),
        ("gpt-4o", None, 200_000, Window(200_000, 16_384, "learned")),
        ("gpt-4o", 50_000, 8_192, Window(8_192, 16_384, "learned")),
        ("gpt-4o", 50_000, 50_000, Window(50_000, 16_384, "policy")),
        ("gpt-4o", 50_000, 90_000, Window(50_000, 16_384, "policy")),
        ("unheard", None, None, None),
        ("unheard", 4_096, None, Window(4_096, None, "policy")),
        ("unheard", None, 4_096, Window(4_096, None, "learned")),
    ],
)
def test_a_window_is_configured_or_learned_or_listed_and_a_refusal_beats_a_promise(
    windows: Windows, model: str, configured: int | None, learned: int | None, expected: Window | None
) -> None:
    if learned is not None:
        windows.learn("main", model, learned, now=0)
    assert windows.resolve("main", model, configured, now=1) == expected


def tokens(windows: Windows, now: float = 1, upstream: str = "main") -> int | None:
    window = windows.resolve(upstream, "unheard", None, now)
    return window.tokens if window else None


def test_what_was_learned_holds_for_a_day_for_this_upstream(windows: Windows) -> None:
    windows.learn("main", "unheard", 8_192, now=100)
    assert tokens(windows, 100 + LEARNED_TTL - 1) == 8_192
    assert tokens(windows, 100 + LEARNED_TTL) is None
    assert tokens(windows, 101, upstream="other") is None


def test_the_newest_lesson_holds_and_nonsense_teaches_nothing(windows: Windows) -> None:
    for limit in (8_192, 4_096, 0, -1):
        windows.learn("main", "unheard", limit, now=0)
    assert tokens(windows) == 4_096


def test_a_larger_prompt_that_succeeds_disproves_what_was_learned(windows: Windows) -> None:
    windows.learn("main", "unheard", 8_192, now=0)
    windows.saw_success("main", "unheard", 8_192, now=1)
    assert tokens(windows) == 8_192
    windows.saw_success("main", "unheard", 8_193, now=1)
    assert tokens(windows) is None
    windows.saw_success("main", "unheard", 9_000, now=1)
    windows.learn("main", "unheard", 16_384, now=2)
    assert tokens(windows, 2) == 16_384


def test_a_learned_limit_can_be_forgotten(windows: Windows) -> None:
    windows.forget("main", "unheard")
    windows.learn("main", "unheard", 8_192, now=0)
    windows.forget("main", "unheard")
    assert tokens(windows) is None


@pytest.mark.parametrize(
    ("observed", "factor"),
    [
        ([], 1.0),
        ([(1000, 1300)], 1.3),
        ([(1000, 1300), (1000, 1100)], 1.3),
        ([(1000, 700)], 1.0),
        ([(1000, 90_000)], 6.0),
        ([(50, 90)], 1.0),
        ([(0, 90), (1000, 0), (-5, -5)], 1.0),
        ([(1000, 2000)] + [(1000, 1100)] * 15, 2.0),
        ([(1000, 2000)] + [(1000, 1100)] * 16, 1.1),
    ],
)
def test_estimates_are_corrected_by_the_worst_of_what_was_lately_seen(
    windows: Windows, observed: list[tuple[int, int]], factor: float
) -> None:
    for estimated, real in observed:
        windows.calibrate("main", "gpt-4o", estimated, real)
    assert windows.calibration("main", "gpt-4o") == pytest.approx(factor)
    assert windows.calibration("other", "gpt-4o") == 1.0


def test_memory_of_models_is_bounded_and_the_least_recently_used_goes(table: ModelTable) -> None:
    windows = Windows(table, max_entries=2)
    for model in ("a", "b"):
        windows.calibrate("main", model, 1000, 2000)
    assert windows.calibration("main", "a") == 2.0
    windows.calibrate("main", "c", 1000, 2000)
    assert [windows.calibration("main", model) for model in "abc"] == [2.0, 1.0, 2.0]


def test_a_name_no_model_has_is_not_remembered(windows: Windows) -> None:
    name = "m" * (MAX_NAME + 1)
    windows.learn("main", name, 8_192, now=0)
    windows.calibrate("main", name, 1000, 2000)
    assert windows.resolve("main", name, None, now=1) is None
    assert windows.calibration("main", name) == 1.0
