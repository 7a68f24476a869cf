"""A client's own summary in a message that holds results as well, when that message is covered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support import strict_messages
from tests.support.items import told, used, uses
from tests.support.stages import outcome, stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.conversations import Json

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"
SUMMARIES = {
    "Claude Code": "This session is being continued from a previous conversation that ran out of context.\n\n"
    "Summary:\n1. The importer is being ported. Never touch legacy/.",
    "an element": "<conversation_summary>\nThe importer is being ported. Never touch legacy/.\n</conversation_summary>",
}


def with_blocks(*blocks: Json) -> list[Json]:
    """A call whose result has these blocks behind it."""
    call, result = used(0, 20)
    return [call, {**result, "content": [*result["content"], *blocks]}]


@pytest.mark.parametrize("task", ["Port the importer.", "", SUMMARIES["Claude Code"]])
@pytest.mark.parametrize("case", SUMMARIES)
async def test_the_summary_is_sent_and_never_a_message_without_content(tmp_path: Path, case: str, task: str) -> None:
    text = {"type": "text", "text": SUMMARIES[case]}
    first = [{"role": "user", "content": [{"type": "text", "text": task or "Go on."}]}]
    async with stage(tmp_path, policies={"default": {"summarizer": {"model": "none"}}}) as play:
        for rounds in (30, 50):
            messages = [*first, *with_blocks(text), *uses(rounds, 1)]
            reply = await play.send(told(messages), path=MESSAGES)
            assert outcome(reply)[0] in ("applied", "reused")
            sent = json.loads(play.sent[-1].body)
            assert strict_messages.defects(sent) == []
            assert all(message["content"] for message in sent["messages"])
            assert "Never touch legacy/." in json.dumps(sent["messages"])
