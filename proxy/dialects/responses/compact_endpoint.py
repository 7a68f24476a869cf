"""The answer to OpenAI's `/responses/compact`: the user's messages, and one compaction item."""

from collections.abc import Sequence

import msgspec

from proxy.dialects.compaction import Answer
from proxy.dialects.responses.canonical import Json
from proxy.dialects.responses.compaction import usage_of
from proxy.dialects.responses.kinds import is_message, kind_of


def kept_user(item: object, number: int) -> Json | None:
    """A user's message as it stands in the answer to `/responses/compact`; None for any other item."""
    if not isinstance(item, dict) or not is_message(item, kind_of(item)) or item.get("role") != "user":
        return None
    content = item.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return {"id": f"msg_{number}", "status": "completed", **item, "type": "message", "content": parts}


def compacted(answer: Answer, kept: Sequence[Json]) -> bytes:
    """The answer to `/responses/compact`."""
    body = {"id": f"resp_{answer.name}", "object": "response.compaction", "created_at": answer.at}
    return msgspec.json.encode({**body, "output": [*kept, answer.item], "usage": usage_of(answer.spent)})
