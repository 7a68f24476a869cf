"""`concertina replay` of sessions whose client holds compaction items."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from proxy.cli.main import app
from proxy.compaction.provider.sealed_items import CompactionItem, ItemSealer
from proxy.memory import Cache, Memory
from proxy.sessions.stores.sealing import Sealer
from tests.support.items import HEAD, TASK, rounds, said
from tests.support.records import generation, made

if TYPE_CHECKING:
    from pathlib import Path

KEY = "6b" * 32
CONFIG = f"""\
upstreams: {{main: {{base_url: http://127.0.0.1:9/v1}}}}
store: {{encryption_key: {KEY}}}
policies: {{default: {{summarizer: {{model: none}}}}}}
"""
ITEM = CompactionItem(1, "responses", 1e9, made(generation(1)), covers="ab")


def sealed(key: bytes) -> str:
    return ItemSealer(Sealer(key), Cache(Memory(), "items")).seal("default", ITEM)


@pytest.mark.parametrize(("key", "is_opened"), [(bytes.fromhex(KEY), True), (b"o" * 32, False)])
def test_items_are_opened_with_the_configs_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: bytes, is_opened: bool
) -> None:
    items = [HEAD, said(TASK), {"type": "compaction", "encrypted_content": sealed(key)}, *rounds(2)]
    (tmp_path / "session.jsonl").write_text(json.dumps({"model": "gpt-4o", "input": items}) + "\n", "utf-8")
    (tmp_path / "concertina.yaml").write_text(CONFIG, "utf-8")
    words = ["replay", str(tmp_path / "session.jsonl"), "--config", str(tmp_path / "concertina.yaml"), "--json"]
    with pytest.raises(SystemExit) as ended:
        app([*words, "--policy", "default"])
    told = capsys.readouterr()
    assert not ended.value.code, told.err
    (session,) = json.loads(told.out)["sessions"]
    assert session["policies"]["default"]["tokens_received"] > ITEM.record.text_tokens
    assert ("store.encryption_key does not open" in told.err) is not is_opened
