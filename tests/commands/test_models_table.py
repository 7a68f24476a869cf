"""What `concertina models` prints of what was learned."""

from __future__ import annotations

import io
import time

import pytest
from msgspec.structs import replace
from rich.console import Console

from policies.experience import ModelProfile
from proxy.commands.models import show
from proxy.models.windows import ModelKey, Sources


@pytest.mark.parametrize(
    ("known", "media"),
    [
        (ModelProfile(), "-"),
        (ModelProfile(media_bytes=32_000_000), "32.0 MB"),
        (ModelProfile(pictures=100), "100 of them"),
        (ModelProfile(media_bytes=5_000_000, pictures=20), "5.00 MB, 20 of them"),
        (ModelProfile(pages=600, many=20, side=2_000), "600 pages, 20 over 2,000 px"),
        (ModelProfile(refused_media=("a", "b"), media_at=-7_200.0), "not 2 by themselves, 2 h ago"),
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
