"""Refusals of media in the words of many providers, servers and languages, and in their envelopes; and what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.upstreams.refusals.media_refusals import MediaRefusal, media_refusal, media_refusal_in

ROWS = [json.loads(line) for line in (Path(__file__).parent / "media_wordings.jsonl").read_text("utf-8").splitlines()]
Row = dict[str, object]


def read(status: int, body: str) -> MediaRefusal | None:
    """As an answer, or under 200 as an event that reports an error."""
    return media_refusal_in(body.encode(), failed=True) if status == 200 else media_refusal(status, body.encode())


@pytest.mark.parametrize("row", [row for row in ROWS if row["what"]], ids=lambda row: row["body"][:60])
def test_refusals(row: Row) -> None:
    refusal = read(row["status"], row["body"])  # type: ignore[arg-type]
    assert refusal is not None
    assert (refusal.what, refusal.limit) == (row["what"], row["limit"])


@pytest.mark.parametrize("row", [row for row in ROWS if not row["what"]], ids=lambda row: row["body"][:60])
def test_what_is_none(row: Row) -> None:
    """Theirs to mend, theirs to wait for, or about something else: nothing of it is acted on."""
    assert read(row["status"], row["body"]) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("own", [401, 403, 429, "429", 529])
@pytest.mark.parametrize("said", ["Exceeded maximum number of images (50)", "request entity too large"])
def test_an_error_that_names_another_status_is_none(said: str, own: object) -> None:
    """As gateways pass on what an upstream has said of a rate, a key or its load."""
    body = json.dumps({"error": {"message": said, "code": own}})
    assert read(200, body) is read(400, body) is None
    assert read(400, json.dumps({"error": {"message": said, "code": 400}})) is not None
