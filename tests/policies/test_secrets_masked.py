"""Which texts are secrets, and what stays of the words around them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.secrets import masked

LONG = "aB3dE5fG7hJ9kL1mN3pQ5" + "rS7tU9vW1xY3zA5"
# Put together here: no scanner is to take them for keys.
SECRETS = {
    "sk-" + "proj-" + LONG: "openai",
    "sk-" + "ant-" + LONG: "anthropic",
    "AK" + "IA" + "ABCDEFGHIJKLMNOP": "aws",
    "gh" + "p_" + LONG: "github",
    "gl" + "pat-" + LONG: "gitlab",
    "xo" + "xb-" + "123456789-" + LONG: "slack",
    "hf" + "_" + LONG: "huggingface",
}
CONTEXTS = ["{}", "key: {}", "export K={}", '{{"k": "{}"}}', "-H 'X-Key: {}'", "他说 {} 好"]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(("secret", "kind"), SECRETS.items(), ids=SECRETS.values())
def test_a_providers_key_is_masked_wherever_it_stands(context: str, secret: str, kind: str) -> None:
    assert masked(context.format(secret)) == context.format(f"[secret:{kind}:{secret[-4:]}]")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"AWS_SECRET_ACCESS_KEY={LONG}", "AWS_SECRET_ACCESS_KEY=[secret:value:3zA5]"),
        ("postgres://app:hunter2x@db/x", "postgres://app:[secret:dsn:er2x]@db/x"),
        (f"Authorization: Bearer {LONG}", "Authorization: Bearer [secret:bearer:3zA5]"),
        ("密码是 Hunter2xyz，记住", "密码是 [secret:value:2xyz]，记住"),
        ("my password is hunter22; always deploy", "my password is [secret:value:er22]; always deploy"),
        ('{\\"password\\": \\"x9$Kq2mm\\"}', '{\\"password\\": \\"[secret:value:q2mm]\\"}'),
        (f"?token={LONG}&x=1", "?token=[secret:value:3zA5]&x=1"),
    ],
)
def test_a_value_beside_the_name_of_a_secret_is_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("commit 9f86d081884c7d659a2f", "sha256:" + "9f86d0" * 10, "123e4567-e89b-12d3-a456-426614174000"),
        *("api_key: YOUR_API_KEY", "token=${TOKEN}", "sk-...", "password: string", "token = get_token()"),
        *("key_file=/etc/ssl/key.pem", "max_tokens: 32000", "token_count=123456", "token=self.token"),
        *("password: str | None", "the token is expired already", "secret: SecretStr = SecretStr()"),
    ],
)
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert masked(text) == text


@given(st.lists(st.sampled_from([*SECRETS, "password: ", "=", " ", "token", "://u:", "@", "x", '"', "Bearer "])))
def test_masking_again_changes_nothing(parts: list[str]) -> None:
    once = masked("".join(parts))
    assert masked(once) == once
