"""The files in proxy/models/bundled: what litellm has, and no more."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.models import table
from proxy.models.encodings import BUNDLED
from tests.support.bundled import bundle, litellm_directory, table_file

ROOT = Path(__file__).parents[2]
# As tiktoken_ext/openai_public.py has them.
SHA256 = {
    "fb374d419588a4632f3f557e76b4b70aebbca790": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "9b5ad71b2ce5302211f9c61530b329a4922fc6a4": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "ec7223a39ce59f226a68acc30dc1af2788490e15": "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
}


@pytest.fixture
def litellm() -> Path:
    directory = litellm_directory()
    if directory is None:
        pytest.skip("litellm is not installed: run `make setup`")
    return directory


def test_what_is_bundled_is_what_the_installed_litellm_has(litellm: Path) -> None:
    for name, content in bundle(litellm).items():
        assert (BUNDLED / name).read_bytes() == content, f"{name}: make models"


def test_the_bundled_table_says_of_every_model_what_litellms_says(litellm: Path) -> None:
    exact, bare, prices = table._read(table_file(litellm))
    prices.pop("sample_spec", None)
    assert table._read(table.TABLE) == (exact, bare, prices)
    assert len(exact) > 1_000
    assert len(prices) > 1_000


@pytest.mark.parametrize("name", SHA256)
def test_vocabularies_are_those_that_tiktoken_asks_for(name: str) -> None:
    assert hashlib.sha256((BUNDLED / name).read_bytes()).hexdigest() == SHA256[name]


def test_every_bundled_file_has_its_licence() -> None:
    readme = (BUNDLED / "README.md").read_text("utf-8")
    for file in {*BUNDLED.glob("*")} - {BUNDLED / "README.md", BUNDLED / "licenses"}:
        assert file.name[:6] in readme, file.name
    for licence in sorted((BUNDLED / "licenses").iterdir()):
        assert f"`licenses/{licence.name}`" in readme


def test_windows_prices_and_counts_are_there_without_litellm() -> None:
    script = (
        "import sys; sys.modules['litellm'] = None\n"
        "from proxy.models.table import ModelTable; from proxy.models.tokenizer import Tokenizer\n"
        "t, n = ModelTable(), Tokenizer(); print(t.lookup('gpt-4o').tokens, t.price('gpt-4o').prompt > 0)\n"
        "print(*(n.count('one two three', e) for e in ('o200k_base', 'cl100k_base', 'p50k_base', 'claude')))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ended.stdout.split() == ["128000", "True", "3", "3", "3", "3"]
