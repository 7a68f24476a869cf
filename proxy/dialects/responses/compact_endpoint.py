"""Responses of OpenAI's `/responses/compact`: the user's messages, and one compaction item."""

from collections.abc import Sequence

import msgspec

from proxy.dialects.compaction import CompactionAnswer
from proxy.dialects.responses.canonical import Json
from proxy.dialects.responses.compaction import usage_of
from proxy.dialects.responses.kinds import is_message, kind_of


def kept_user(item: object) -> Json | None:
    """Return a user's message as `/responses/compact` returns it; None for any other item."""
    if not isinstance(item, dict) or not is_message(item, kind_of(item)) or item.get("role") != "user":
        return None
    content = item.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return {"status": "completed", **item, "type": "message", "content": parts}


def answer_of(answer: CompactionAnswer, kept_items: Sequence[Json]) -> bytes:
    """Return the response of `/responses/compact`.

    Ids are unique to each response: the kept_items items are sent again, and OpenAI rejects two items with the same id.
    """
    users = [{**item, "id": item.get("id") or f"msg_{answer.name}_{at}"} for at, item in enumerate(kept_items)]
    body = {"id": f"resp_{answer.name}", "object": "response.compaction", "created_at": answer.at}
    return msgspec.json.encode({**body, "output": [*users, answer.item], "usage": usage_of(answer.spent)})
