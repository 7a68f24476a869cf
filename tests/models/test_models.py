"""Windows by name, from litellm's table."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from policies.price import Price
from proxy.models.table import ModelTable, Window, bare_name
from tests.support.model_tables import ROWS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def table(tmp_path: Path) -> ModelTable:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(ROWS), encoding="utf-8")
    return ModelTable(path)


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
        ("command-r-08-2024", "command-r"),
        ("google/gemini-1.5-pro-002", "gemini-1.5-pro"),
        ("deepseek/deepseek-chat:free", "deepseek-chat"),
        ("mistral:latest", "mistral"),
        ("llama3.1:8b", "llama3.1:8b"),
        ("ft:", ""),
        ("/", ""),
        ("", ""),
    ],
)
def test_a_bare_name_has_neither_provider_nor_release(model: str, bare: str) -> None:
    assert bare_name(model) == bare


def test_prices_with_what_caches_take_and_steps_by_size(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    plain = {"input_cost_per_token": 2.0, "output_cost_per_token": 8.0}
    rows: dict[str, dict[str, float]] = {
        "plain": plain,
        "cached": plain
        | {
            "cache_read_input_token_cost": 0.2,
            "cache_creation_input_token_cost": 2.5,
            "cache_creation_input_token_cost_above_1hr": 4.0,
        },
        "stepped": plain
        | {
            "cache_read_input_token_cost": 0.2,
            "input_cost_per_token_above_200k_tokens": 4.0,
            "output_cost_per_token_above_200k_tokens": 12.0,
            "cache_read_input_token_cost_above_200k_tokens": 0.4,
        },
        "half": {"input_cost_per_token": 2.0},
    }
    path.write_text(json.dumps(rows), encoding="utf-8")
    table = ModelTable(path)
    assert table.price("plain") == Price(2.0, 8.0, 2.0, 2.0, 2.0)
    assert table.price("cached") == Price(2.0, 8.0, 0.2, 2.5, 4.0)
    dear = Price(4.0, 12.0, 0.4, 4.0, 4.0)
    assert table.price("stepped") == Price(2.0, 8.0, 0.2, 2.0, 2.0, above=200_000, dear=dear)
    assert table.price("half") is None


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
        ("gpt-4o:free", 128_000),
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
        "import sys; from proxy.models.table import ModelTable; t = ModelTable();"
        "print(t.lookup('gpt-4o').tokens, t.lookup('gpt-5').tokens, t.lookup('gpt-4').tokens, 'litellm' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.split() == ["128000", "272000", "8192", "False"]
