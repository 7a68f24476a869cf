"""Items without some of their media are what they are if each is read and written whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import media_parts, skeleton
from proxy.dialects.json_array import decode, split_items
from proxy.dialects.media_parts import GREY, with_notes
from proxy.dialects.skeleton import cut_items
from proxy.dialects.surrogates import readable
from tests.support.pictures import FORMS, picture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.conversations import Json

LARGE = picture(1, 100_000)
LISTS = ("content", "output")


def read_and_written_whole(raw: bytes, notes: Mapping[int, str], kind: str) -> bytes:
    """What `with_notes` returns, without a skeleton."""
    number, changed = 0, []

    def other(value: object, *, is_top: bool = False) -> object:
        nonlocal number
        if isinstance(value, list):
            return [other(each) for each in value]
        if not isinstance(value, dict):
            return value
        is_shot = value.get("type") == "computer_screenshot" and value.get("image_url") != GREY
        if not is_top and (value.get("type") in ("image", "image_url", "input_image", "document", "file") or is_shot):
            number += 1
            if (note := notes.get(number - 1)) is None:
                return value
            if is_shot:
                return {**value, "image_url": GREY}
            mark = {"cache_control": value["cache_control"]} if "cache_control" in value else {}
            return {"type": kind, "text": note, **mark}
        return {key: other(each) if key in LISTS else each for key, each in value.items()}

    for item in split_items(raw):
        before = number
        written = msgspec.json.encode(other(decode(readable(item)), is_top=True))
        changed.append(written if any(before <= at < number for at in notes) else item)
    return b",".join(changed)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("size", [1_000, 40_000, 1_000_000])
def test_notes_stand_in_every_form_as_if_the_item_were_read_whole(name: str, size: int) -> None:
    items = [item for number in range(3) for item in FORMS[name].round_of(picture(number, size), number)]
    raw = json.dumps(items).encode()[1:-1]
    for notes in ({0: "gone"}, {1: 'a "note"', 2: "略"}, {}):
        assert with_notes(raw, notes, "text") == read_and_written_whole(raw, notes, "text")


data = st.sampled_from(
    [
        LARGE,
        LARGE[:40_000] + "=",
        LARGE[:39_000] + "/é" + LARGE[:3_000],
        LARGE[:20_000] + "\\" + LARGE[:20_000],
        LARGE[:20_000] + "\ud83d" + LARGE[:20_000],
        "QUJD",
        "media:0:0123456789abcdef",
    ]
)
sources = st.builds(lambda value: {"type": "base64", "media_type": "image/png", "data": value}, data)
urls = data.map("data:image/png;base64,".__add__)
parts = st.one_of(
    st.builds(lambda source: {"type": "image", "source": source}, sources),
    st.builds(
        lambda source: {"type": "image", "source": source, "cache_control": {"type": "ephemeral"}, "data": LARGE},
        sources,
    ),
    st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, urls),
    st.builds(lambda url: {"type": "input_image", "image_url": url}, urls),
    st.builds(lambda text: {"type": "text", "text": text}, data | st.just('{"data":"' + LARGE + '"}')),
)
results = st.builds(lambda inner: {"type": "tool_result", "content": inner}, st.lists(parts, max_size=2))
items_of_all = st.one_of(
    st.builds(lambda content: {"role": "user", "content": content}, st.lists(parts | results, max_size=3)),
    st.builds(lambda output: {"type": "function_call_output", "output": output}, st.lists(parts, max_size=2)),
    st.builds(
        lambda url: {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": url}}, urls
    ),
)


@given(
    st.lists(items_of_all, min_size=1, max_size=3),
    st.dictionaries(st.integers(0, 6), st.sampled_from(["gone", "略 \n"])),
    st.booleans(),
    st.booleans(),
)
def test_notes_stand_in_any_item_as_if_it_were_read_whole(
    items: list[Json], notes: dict[int, str], is_ascii: bool, is_slashed: bool
) -> None:
    raw = json.dumps(items, ensure_ascii=is_ascii).encode("utf-8", "replace")[1:-1]
    raw = raw.replace(b"/", rb"\/") if is_slashed else raw
    assert with_notes(raw, notes, "input_text") == read_and_written_whole(raw, notes, "input_text")


def test_large_values_are_not_read_to_write_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = json.dumps(FORMS["messages, tool"].round_of(LARGE, 0)).encode()[1:-1]
    read = list[int]()

    def counting(item: bytes | memoryview) -> object:
        read.append(len(item))
        return decode(item)

    monkeypatch.setattr(media_parts, "decode", counting)
    with_notes(raw, {0: "gone"}, "text")
    assert read
    assert max(read) < 1_000


def test_what_was_cut_out_comes_back_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skeleton, "_LEAST", 256)
    raw = json.dumps([{"data": "QUJD" * n} for n in (10, 100, 200)]).encode()
    cut = cut_items(raw)
    assert len(cut.values) == 2
    assert len(cut.text) < 300
    assert cut.restore(cut.text) == raw
