"""What a person's words are to the work."""

import pytest

from policies.authorship.speech import speech_of


@pytest.mark.parametrize(
    "text",
    [
        *("Go on.", "yes", "OK, continue", "Yes, go ahead please!", "LGTM 👍", "y", "thanks", "…", "👍"),
        *(
            "继续",
            "好的，继续吧。",
            "可以",
            "はい、続けてください",
            "お願いします",
            "네, 계속해줘",
            "Weiter bitte",
            "sí, continúa",
            "oui, vas-y",
        ),
        *("да, продолжай", "pode continuar", "tiếp tục"),
    ],
)
def test_a_word_to_go_on_asks_for_nothing_new(text: str) -> None:
    assert speech_of(text) == "brief"


@pytest.mark.parametrize(
    "text",
    [
        "Use pnpm.",
        "yes, delete it",
        "3",
        "端口改为9443",
        "ポートを変えて",
        "No tests yet?",
        "继续用 Rust 写",
        "go to main.py",
    ],
)
def test_all_else_is_a_request(text: str) -> None:
    assert speech_of(text) == "full"


def test_no_text_is_no_speech() -> None:
    assert speech_of(" \n") == "none"
