"""Which upstreams answer the providers' compaction protocols: by the setting, else by their host."""

from __future__ import annotations

import pytest

from proxy.compaction.provider.hosts import answers_compactions
from proxy.config.settings import Upstream
from proxy.dialects.table import MESSAGES, RESPONSES


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
def test_providers_are_known_by_their_host_unless_the_setting_decides(
    url: str, responses: bool | None, messages: bool | None
) -> None:
    assert answers_compactions(Upstream(base_url=url), RESPONSES) is responses
    assert answers_compactions(Upstream(base_url=url), MESSAGES) is messages
    for dialect in (RESPONSES, MESSAGES):
        assert answers_compactions(Upstream(base_url=url, native_compaction="yes"), dialect) is True
        assert answers_compactions(Upstream(base_url=url, native_compaction="no"), dialect) is False


def test_litellm_answers_none() -> None:
    upstream = Upstream(base_url="https://api.openai.com/v1", provider="litellm")
    assert answers_compactions(upstream, RESPONSES) is False
