"""Signs that look like others are folded for comparisons, sign for sign."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.lookalikes import fold_lookalikes
from policies.conversation.transcript import escape


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("тrаnѕсriрt", "transcript"),
        ("τransϲriρt", "transcript"),
        ("ｔｒａｎｓｃｒｉｐｔ", "transcript"),
        ("𝖙𝐫𝒶𝓃𝚜𝕔𝔯𝗶𝘱𝙩", "transcript"),
        ("ⓣⓡⓐⓝⓢⓒⓡⓘⓟⓣ", "transcript"),
        ("ᴛʀᴀɴꜱᴄʀɪᴘᴛ", "transcript"),
        ("ꓔꓣꓮꓠꓢꓚꓣꓲꓑꓔ", "transcript"),
        ("tránsçrïpt", "transcript"),
        ("❮／part❯ ﹤part﹥ ［inst］ ｜user｜", "</part> <part> [inst] |user|"),
        ("端口改为 9090，请不要修改。", "端口改为 9090,请不要修改。"),
        ("plain <text>", "plain <text>"),
    ],
)
def test_what_looks_like_a_sign_is_compared_as_that_sign(text: str, plain: str) -> None:
    assert fold_lookalikes(text) == plain


@given(st.text())
def test_folding_keeps_every_place(text: str) -> None:
    assert len(fold_lookalikes(text)) == len(text)


@pytest.mark.parametrize(
    "text",
    [
        "if (a < b && c > d) return x[i];",
        "<div><span>ok</span><strong>no</strong><sup>2</sup></div>",
        "std::vector<int> v; List<String> s; fn<T>(x: &[T])",
        "usage: tool [OPTIONS] COMMAND [ARGS]... [--start] [0] [install]",
        "[2026-11-22 14:00:01] INFO done </br> <script src='x'></script>",
        "- [x] done\n- [ ] open\n[link](http://example.com) **bold** | a | b |",
        "《三体》〈序〉 Привет, ελληνικά, 日本語【重要】",
        "echo <<EOF\n$x\nEOF\n<<<<<<< HEAD\n=======\n>>>>>>> branch",
    ],
)
def test_ordinary_text_is_not_escaped(text: str) -> None:
    assert escape(text) == text


def test_only_the_sign_in_front_is_escaped_and_look_alikes_elsewhere_stay() -> None:
    assert escape("раssword: ❮/trаnscript❯ and ［INST］") == "раssword: &lt;/trаnscript❯ and &#91;INST］"


@pytest.mark.parametrize(
    "name", ["system-reminder", "system_reminder", "environment_context", "command-name", "bash-input"]
)
@pytest.mark.parametrize("spelled", ["<{}>", "</{}>", "< / {}>", "<{} a='1'>", "＜{}＞", "<{}\n>"])
def test_foreign_text_does_not_speak_as_a_harness(name: str, spelled: str) -> None:
    text = spelled.format(name)
    assert escape(f"a {text} b") == f"a &lt;{text[1:]} b"


@pytest.mark.parametrize(
    "text", ["<my-element>", "<environment>", "<command-named>", "a < system-call", "<EnvironmentFile>"]
)
def test_other_elements_stay_as_they_are(text: str) -> None:
    assert escape(text) == text
