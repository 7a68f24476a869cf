"""What `concertina models` prints of what was learned."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from rich.console import Console

from policies.model_profile import ModelProfile
from proxy.cli.main import app
from proxy.cli.models import show
from proxy.models.windows import ModelKey, Sources

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_store_that_cannot_be_read_is_told_in_a_line_and_the_rest_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_folder: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    file = tmp_path / "var" / "concertina.db"
    if is_folder:
        file.mkdir(parents=True)
    else:
        file.parent.mkdir()
        file.write_text("no database at all")
    with pytest.raises(SystemExit) as ended:
        app(["models", "gpt-4o"])
    out, err = capsys.readouterr()
    assert (ended.value.code, "128,000 (table)" in out) == (0, True)
    assert err.startswith("store.url: var/concertina.db cannot be used as the store (")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("known", "media"),
    [
        (ModelProfile(), "-"),
        (ModelProfile(media_bytes=32_000_000), "32.0 MB"),
        (ModelProfile(pictures=100), "100 of them"),
        (ModelProfile(media_bytes=5_000_000, pictures=20), "5.00 MB, 20 of them"),
        (ModelProfile(pictures=20, media_at=-7_200.0), "20 of them, 2 h ago"),
    ],
)
def test_limits_of_media_are_in_the_table(known: ModelProfile, media: str) -> None:
    """What was learned so many seconds ago says when."""
    if known.media_at:
        known = replace(known, media_at=time.time() + known.media_at)
    out = io.StringIO()
    place = ModelKey("t", "0", "http://127.0.0.1:1/v1", "m", "")
    show([Sources(place, None, None, None, None, None, 1.0, known)], Console(file=out))
    heads, row = out.getvalue().splitlines()
    first = heads.index("media") + len("media") - len(media)
    assert row[first : first + len(media)] == media
