"""Long conversations of words alone, which every dialect writes alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.scenarios import MODEL, prose

if TYPE_CHECKING:
    from proxy.dialects.base import Dialect
    from tests.support.conversations import Json


def turns(rounds: int, words: int = 220) -> list[Json]:
    """User and model in turn; 30 rounds are due to be compacted on a stage."""
    said: list[Json] = [{"role": "user", "content": "The task is: never delete src/main.py."}]
    for number in range(rounds):
        said.append({"role": "assistant", "content": f"I have read part {number}."})
        said.append({"role": "user", "content": prose(number, words)})
    return said


def written(dialect: Dialect, items: object, **more: object) -> bytes:
    """A request of these."""
    limit = {"max_tokens": 256} if dialect.name == "messages" else {}
    return json.dumps({"model": MODEL, dialect.array.name: items, **limit, **more}).encode()


def path_of(dialect: Dialect) -> str:
    return "/v1/" + "/".join(dialect.path)
