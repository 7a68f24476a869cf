"""What stands for media that are left out, in the conversation's language."""

from __future__ import annotations

import pytest

from policies.record.media_notes import NotedMedium, note_of
from policies.record.texts import Language

SHOT = NotedMedium("image", 7, "PNG 1280 x 800", 1_000_000, is_of_tool=True, tool="screenshot")
USERS = NotedMedium("image", 3, "JPEG 2560 x 1440", 800_000, is_of_tool=False)
NAMED = NotedMedium("document", 22, "", 0, is_of_tool=True)


@pytest.mark.parametrize(
    ("medium", "language", "note"),
    [
        (
            SHOT, "en",
            "[image left out by the gateway: number 7 of this conversation, PNG 1280 x 800, 1.0 MB, "
            "result of screenshot; call it again if you need it]",
        ),
        (
            USERS, "en",
            "[image left out by the gateway: number 3 of this conversation, JPEG 2560 x 1440, 0.8 MB, "
            "sent by the user]",
        ),
        (
            NAMED, "en",
            "[document left out by the gateway: number 22 of this conversation, of a result; "
            "ask for it again if you need it]",
        ),
        (
            SHOT, "zh",
            "[网关已略去图片：本次对话的第 7 个，PNG 1280 x 800，1.0 MB，screenshot 的结果；如有需要，请重新调用]",
        ),
    ],
)  # fmt: skip
def test_notes(medium: NotedMedium, language: Language, note: str) -> None:
    assert note_of(medium, language) == note
