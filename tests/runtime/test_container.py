"""What a container's memory allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.runtime import container
from proxy.runtime.container import MOST_BUFFERED, buffered_that_fit, memory_limit, most_buffered

GI = 1024**3


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": "1073741824\n"}, GI),
        ({"memory.max": "max\n"}, None),
        ({"memory/memory.limit_in_bytes": "536870912\n"}, GI // 2),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({"memory.max": "-1"}, None),
        ({}, None),
    ],
)
def test_a_limit_is_read_where_the_system_keeps_it(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_limit(tmp_path) == limit


@pytest.mark.parametrize(("limit", "processes"), [(GI, 1), (2 * GI, 1), (2 * GI, 4), (GI // 2, 1)])
def test_bodies_and_what_the_processes_take_fit_together(limit: int, processes: int) -> None:
    fit = buffered_that_fit(limit, processes)
    assert fit is not None
    assert processes * 180_000_000 + 2 * fit <= limit or fit == 0


def test_without_a_limit_any_number_fits() -> None:
    assert buffered_that_fit(None) is None


@pytest.mark.parametrize(
    ("wanted", "limit", "holds"),
    [
        (None, None, MOST_BUFFERED),
        (None, 16 * GI, MOST_BUFFERED),
        (None, GI, buffered_that_fit(GI)),
        (4096, None, 4096),
        (4096, GI, 4096),
        (2 * MOST_BUFFERED, 16 * GI, 2 * MOST_BUFFERED),
        (2 * MOST_BUFFERED, GI, buffered_that_fit(GI)),
    ],
)
def test_bodies_have_what_is_set_as_far_as_the_container_has_it(
    monkeypatch: pytest.MonkeyPatch, wanted: int | None, limit: int | None, holds: int
) -> None:
    monkeypatch.setattr(container, "memory_limit", lambda: limit)
    assert most_buffered(wanted) == holds
