"""Which paths are a dialect's, and what they name by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from proxy.callers.api_head import ApiHead
from proxy.callers.api_paths import reading
from proxy.dialects import table
from tests.support.fourth_dialect.row import GEMINI

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def _fourth(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The table with one row more."""
    monkeypatch.setattr(table, "DIALECTS", (*table.DIALECTS, GEMINI))
    reading.cache_clear()
    yield
    reading.cache_clear()


@pytest.mark.usefixtures("_fourth")
@pytest.mark.parametrize(
    ("path", "model", "stream", "names"),
    [
        ("/v1beta/models/Gemini-Pro:generateContent", "Gemini-Pro", False, ("models", "Gemini-Pro:generateContent")),
        ("/v1/models/m:streamGenerateContent", "m", True, ("models", "m:streamGenerateContent")),
        ("/models/m:generateContent", "m", False, ("models", "m:generateContent")),
        ("/v1beta/Models/m:generateContent", "m", False, ("models", "m:generateContent")),
        ("/v1beta/models/text%40001:generateContent", "text@001", False, ("models", "text@001:generateContent")),
        ("/v1beta/models/a:b:generateContent", "a:b", False, ("models", "a:b:generateContent")),
    ],
)
def test_a_path_names_its_model_and_verb_as_they_are_written(
    path: str, model: str, stream: bool, names: tuple[str, ...]
) -> None:
    head = ApiHead("POST", path, [])
    assert head.conversation is GEMINI
    assert head.reading.asked == names
    assert (head.model, head.model_of(b'{"model": "other"}')) == (model, model)
    settings = head.dialect.settings(head.dialect.array.envelope(b'{"contents": []}').fields)
    assert (settings.model, settings.stream) == (model, stream)


@pytest.mark.usefixtures("_fourth")
@pytest.mark.parametrize(
    "path",
    [
        "/v1beta/models/m:generatecontent",
        "/v1beta/models/:generateContent",
        "/v1beta/models/m",
        "/v1beta/models",
        "/v1beta/models/a%2Fb:generateContent",
        "/files/models/m:generateContent",
        "/v1beta/models/m:generateContent/operations",
    ],
)
def test_other_paths_are_none_of_a_conversation(path: str) -> None:
    assert ApiHead("POST", path, []).conversation is None


@pytest.mark.usefixtures("_fourth")
def test_what_is_asked_beside_a_conversation_is_told_by_its_path() -> None:
    counted = ApiHead("POST", "/v1beta/models/m:countTokens", [])
    assert (counted.is_count, counted.conversation, counted.model) == (True, None, "m")
    assert not ApiHead("GET", "/v1beta/models/m:countTokens", []).is_count


def test_every_list_of_dialects_is_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "DIALECTS", (*table.DIALECTS, GEMINI))
    assert table.names()[-1] == "gemini"
    assert table.dialects_of_host("generativelanguage.googleapis.com") == ("gemini",)
    assert table.dialects_of_host("api.anthropic.com") == ("messages", "chat")
    assert "x-goog-api-key" in table.key_settings()
    assert table.telemetry_names()["gemini"] == {
        "gen_ai.operation.name": "generate_content",
        "gen_ai.provider.name": "gcp.gemini",
    }
    assert table.dialect_of_body(b'{"contents": []}') is GEMINI
    assert table.shown_paths()[-1] == "/v1/models/*:streamGenerateContent"
