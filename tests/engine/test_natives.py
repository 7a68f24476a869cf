"""Which upstreams are the makers of the protocols, and answer them whatever is asked."""

from __future__ import annotations

import pytest

from proxy.config.settings import Upstream
from proxy.dialects.table import MESSAGES, RESPONSES
from proxy.engine.client_compaction.natives import Natives
from proxy.models.table import ModelTable
from proxy.models.windows import Windows, place_of
from proxy.stores.memory import MemoryStore
from proxy.stores.sealing import SealedStore, Sealer
from proxy.upstream.models_list import natives_of_list
from proxy.upstream.routes import Route

NOW = [1_000_000.0]


@pytest.fixture
def natives() -> Natives:
    NOW[0] = 1_000_000.0
    return Natives(Windows(ModelTable(), SealedStore(MemoryStore(), Sealer(None), 3600.0), lambda: NOW[0]))


def route(url: str, **settings: object) -> Route:
    upstream = Upstream(base_url=url, **settings)  # type: ignore[arg-type]
    return Route("main", upstream, [], place_of("default", b"s" * 32, url, "m"))


@pytest.mark.parametrize(
    ("url", "responses", "messages"),
    [
        ("https://api.openai.com/v1", True, None),
        ("https://chatgpt.com/backend-api/codex", True, None),
        ("https://acme.openai.azure.com", True, None),
        ("https://acme.services.ai.azure.com/openai/v1", True, None),
        ("https://api.anthropic.com/v1", None, True),
        ("https://evil-api.openai.com.example/v1", None, None),
        ("https://notopenai.azure.com/v1", None, None),
        ("http://127.0.0.1:8000/v1", None, None),
    ],
)
def test_makers_are_known_by_their_address(
    natives: Natives, url: str, responses: bool | None, messages: bool | None
) -> None:
    asked = route(url)
    assert natives.answers(asked, RESPONSES, "trigger") is responses
    assert natives.answers(asked, MESSAGES, "edit") is messages
    assert natives.is_native(asked, RESPONSES) is bool(responses)
    for told in ("yes", "no"):
        assert natives.answers(route(url, native_compaction=told), RESPONSES, "trigger") is (told == "yes")


def test_litellm_answers_none(natives: Natives) -> None:
    assert natives.answers(route("https://api.openai.com/v1", provider="litellm"), RESPONSES, "trigger") is False


def test_what_a_trial_has_taught_holds_for_a_while(natives: Natives) -> None:
    asked = route("http://127.0.0.1:8000/v1")
    natives.saw(asked, "trigger", answers=False)
    natives.saw(asked, "endpoint", answers=True)
    assert [natives.answers(asked, RESPONSES, how) for how in ("trigger", "endpoint", "demand")] == [
        False,
        True,
        None,
    ]
    NOW[0] += 24 * 3600 + 1
    assert [natives.answers(asked, RESPONSES, how) for how in ("trigger", "endpoint")] == [None, True]
    NOW[0] += 6 * 24 * 3600
    assert natives.answers(asked, RESPONSES, "endpoint") is None


def test_a_list_of_models_says_it_for_each() -> None:
    managed = {"compact_20260112": {"supported": True}, "clear_tool_uses_20250919": {"supported": True}}
    body = (
        b'{"data":[{"id":"a","capabilities":{"context_management":%b,"compaction":{"supported":false}}},'
        b'{"id":"b","capabilities":{"vision":{"supported":true}}},{"id":"c"}]}'
    ) % str(managed).replace("'", '"').replace("True", "true").encode()
    assert natives_of_list(body) == {"a": {"field": True, "demand": False}}
