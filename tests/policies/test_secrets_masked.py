"""Which texts are secrets, and what stays of the words around them."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.transcript import ToolCall, Utterance
from policies.secrets.mask import mask_secrets, mask_utterances
from tests.policies.secrets_table import (
    HELD_OUT_LOOKALIKES,
    HELD_OUT_SECRETS,
    KEYS,
    LOOKALIKES,
    MORE_LOOKALIKES,
    PLACES,
    broken_up,
    whole,
)
from tests.policies.secrets_table import (
    SECRETS as TEXTS,
)
from tests.support.timing import cpu_seconds

LONG = "aB3dE5fG7hJ9kL1mN3pQ5" + "rS7tU9vW1xY3zA5"
HEX = "4f9a1c7e2b8d3065" + "f1e4a9c7b2d08364"
# Put together here: no scanner is to take them for keys.
SECRETS = {
    "sk-" + "proj-" + LONG: "openai",
    "sk-" + "ant-" + LONG: "anthropic",
    "AK" + "IA" + "ABCDEFGHIJKLMNOP": "aws",
    "gh" + "p_" + LONG: "github",
    "gl" + "pat-" + LONG: "gitlab",
    "xo" + "xb-" + "123456789-" + LONG: "slack",
    "hf" + "_" + LONG: "huggingface",
    "xa" + "i-" + LONG: "xai",
    "pp" + "lx-" + LONG: "perplexity",
    "r8" + "_" + LONG: "replicate",
    "gs" + "k_" + LONG: "groq",
    "np" + "m_" + LONG: "npm",
    "py" + "pi-" + LONG + LONG: "pypi",
    "S" + "G." + LONG[:22] + "." + LONG: "sendgrid",
    "12345" + "6789:A" + "A" + LONG[:33]: "telegram",
    "S" + "K" + HEX: "twilio",
    "ke" + "y-" + HEX: "mailgun",
    "do" + "p_v1_" + HEX + HEX: "digitalocean",
    "shp" + "at_" + HEX: "shopify",
    "dap" + "i" + HEX: "databricks",
    "AI" + "za" + LONG[:35]: "google",
    "ya" + "29." + LONG: "google",
    "sk" + "_live_" + LONG: "stripe",
    "xa" + "pp-1-" + LONG: "slack",
    "hv" + "s." + LONG: "vault",
    "ey" + "J" + LONG + "." + LONG + "." + LONG: "jwt",
}
CONTEXTS = [
    *("{}", "key: {}", "export K={}", '{{"k": "{}"}}', "-H 'X-Key: {}'", "他说 {} 好", "他说的是{}。"),
    *(
        '{{\\"k\\": \\"{}\\"}}',
        "K={}\n",
        "a\\n{}\\nb",
        "https://h/?k={}&x",
        "const k = '{}';",
        "12:00 INFO got {} (ok)",
    ),
]

# Texts that hold a secret, in three parts: before it, the secret, after it.
WITH_SECRETS = [*TEXTS, *HELD_OUT_SECRETS, *KEYS, *PLACES]


def test_a_providers_key_is_masked_wherever_it_stands() -> None:
    masked = {
        mask_secrets(context.format(secret)): context.format(f"[secret:{kind}:{secret[-4:]}]")
        for context in CONTEXTS
        for secret, kind in SECRETS.items()
    }
    assert {text: expected for text, expected in masked.items() if text != expected} == {}


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
    assert mask_secrets(text) == expected


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
    assert mask_secrets(text) == text


def test_of_a_text_with_a_secret_the_words_around_it_stay() -> None:
    wrong = []
    for before, secret, after in map(broken_up, WITH_SECRETS):
        masked = mask_secrets(before + secret + after)
        expected = rf"{re.escape(before)}\[secret:[a-z_]+:\S{{0,4}}\]{re.escape(after)}"
        if not re.fullmatch(expected, masked) or mask_secrets(masked) != masked:
            wrong.append(masked)
    assert not wrong


def test_a_text_without_secrets_stays_as_it_is() -> None:
    texts = [*map(whole, (*LOOKALIKES, *HELD_OUT_LOOKALIKES, *MORE_LOOKALIKES))]
    assert [masked for text in texts if (masked := mask_secrets(text)) != text] == []


@pytest.mark.parametrize("around", ["{}", "see:\n{}\nend", "第一行\n{}\n完", "> {}", "  {}  "])
def test_no_part_of_a_secret_is_left_wherever_its_text_stands(around: str) -> None:
    wrong = []
    for before, secret, after in map(broken_up, WITH_SECRETS):
        masked = mask_secrets(around.format(f"{before}{secret}{after}"))
        if secret in masked or "[secret:" not in masked:
            wrong.append(masked)
    assert not wrong


def test_a_secret_in_an_escaped_text_is_masked_and_the_text_can_still_be_read() -> None:
    """In the argument of a tool, and in the logged request around that."""
    wrong = []
    for before, secret, after in map(broken_up, (text for text in WITH_SECRETS if "\\" not in text)):
        argument = json.dumps({"command": before + secret + after}, ensure_ascii=False)
        for text in (argument, json.dumps({"arguments": argument}, ensure_ascii=False)):
            masked = mask_secrets(text)
            if secret.splitlines()[-1][:16] in masked or "[secret:" not in json.dumps(json.loads(masked)):
                wrong.append(masked)
    assert not wrong


@pytest.mark.parametrize("text", ["密码是Hunter2xyz，记住", "密钥：9fK2mLq8Zt4Rw7Xy。", "contraseña: mariposa77"])
def test_a_name_that_is_escaped_is_read_as_it_is(text: str) -> None:
    once = json.dumps({"command": text})
    for told in (once, json.dumps({"arguments": once})):
        found = mask_secrets(told)
        assert "[secret:value:" in found
        assert mask_secrets(found) == found
        json.loads(found)


def test_escapes_stay_where_no_secret_is() -> None:
    assert mask_secrets(told := json.dumps({"text": "密码不能为空", "n": 1})) == told


def test_reasoning_and_arguments_are_masked_with_the_text() -> None:
    harmless = Utterance(1, "user", "hello")
    told = Utterance(0, "assistant", "x", (ToolCall("sh", "API_KEY=" + LONG),), reasoning=f"API_KEY={LONG}")
    said, other = mask_utterances([told, harmless])
    assert LONG not in said.reasoning + said.calls[0].arguments
    assert other is harmless


def test_a_short_secret_shows_none_of_its_characters() -> None:
    assert mask_secrets("redis://:pw9@h") == "redis://:[secret:dsn:]@h"


@given(st.lists(st.sampled_from([*SECRETS, "password: ", "=", " ", "token", "://u:", "@", "x", '"', "Bearer "])))
def test_masking_again_changes_nothing(parts: list[str]) -> None:
    once = mask_secrets("".join(parts))
    assert mask_secrets(once) == once


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "pw ",
            "key{",
            "password: {",
            "a,b\n",
            "token,token\n",
            "| password |\n|---|---|\n",
            "-----END PRIVATE KEY-----",
        ),
        *("curl -u ", "echo x", "machine a ", "Private-Lines: 1\nab\n", "password:\n  a\n", "MT", "pat.", "token="),
        *('token",', "eyJaaaaaaaaaaa."),
        "token=",
        "password=",
        "api_key-",
        "secret: ",
        "密码是",
        "eyJ",
        "://a:",
        "x.token\n",
        'token="',
        "key,",
        '{"id":1,"key":"v","tokens":[1,2]},',
        "pw|\\n",
    ],
)
def test_no_text_takes_long_to_be_masked(unit: str) -> None:
    text = unit * (160_000 // len(unit))
    assert cpu_seconds(lambda: mask_secrets(text), enough=2) <= 2
