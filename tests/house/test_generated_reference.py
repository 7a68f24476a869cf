"""The reference in docs is what the code writes."""

from __future__ import annotations

import pytest

from tests.house import reference

pytestmark = pytest.mark.slow


def test_the_reference_is_what_the_code_writes() -> None:
    written = {file.name: file.read_text("utf-8") for file in reference.FOLDER.glob("*.md")}
    generated = reference.pages()
    assert [name for name, text in generated.items() if written.get(name) != text] == [], "run `make reference`"
