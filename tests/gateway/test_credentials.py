"""Whose credential goes where: one a request, a login with its client's requests alone, none into log or store."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.dialects.base import Dialect
from proxy.dialects.table import DIALECTS, MESSAGES
from tests.support.plain_talk import path_of, turns, written
from tests.support.stages import ours, stage
from tests.support.upstreams import Header

pytestmark = pytest.mark.anyio

LOGIN = (b"authorization", b"Bearer sk-ant-oat01-x")
LONG = turns(30)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    ("headers", "is_login"),
    [
        ([LOGIN], True),
        ([(b"authorization", b"Bearer sk-x"), (b"chatgpt-account-id", b"a-1")], True),
        ([(b"authorization", b"Bearer sk-x")], False),
        ([(b"x-api-key", b"sk-ant-api03-x")], False),
    ],
)
async def test_a_conversation_is_compacted_under_a_login_without_a_call_of_ours(
    tmp_path: Path, dialect: Dialect, headers: list[Header], is_login: bool
) -> None:
    async with stage(tmp_path) as play:
        reply = await play.send(written(dialect, LONG), *headers, path=path_of(dialect))
        await play.settled()
        assert (reply.status, ours(reply)[""]) == (200, "applied")
        assert (play.model.summary_calls == 0) == is_login
        assert len(play.model.received) == 1 + play.model.summary_calls
        (line,) = play.logged("compaction")
    assert line.get("refused") == (["login"] if is_login else None)
    assert (line["result"] == "deterministic") == is_login


async def test_a_policy_without_a_model_blames_no_login(tmp_path: Path) -> None:
    policies = {"default": {"summarizer": {"model": "none"}}}
    async with stage(tmp_path, policies=policies) as play:
        await play.send(written(MESSAGES, LONG), LOGIN, path=path_of(MESSAGES))
        (line,) = play.logged("compaction")
    assert "refused" not in line
