"""The admin token that is made where none is configured: a file of its owner alone, read again at the next start."""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.callers.admin_token import UnfitError, keep_token, read_token, token_file
from proxy.config.loading import load_text

TOKEN = "t" * 43


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db.admin-token"


def written(file: Path, mode: int = 0o600, text: str = TOKEN) -> None:
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)


def test_a_token_is_made_once_and_only_its_owner_can_read_it(file: Path) -> None:
    first = keep_token(file)
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", first.value)
    assert (first.file, first.is_configured, first.trouble) == (file, False, None)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert keep_token(file) == first
    assert read_token(file) == first.value
    assert list(file.parent.iterdir()) == [file], "nothing else is left"
    assert first.value not in repr(first)


def test_a_file_of_its_owner_is_believed(file: Path) -> None:
    written(file, text=TOKEN + "\n")
    assert keep_token(file).value == TOKEN


def linked(file: Path) -> None:
    other = file.with_name("other")
    written(other)
    file.symlink_to(other)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda file: written(file, 0o640), "can be read or written by other users"),
        (lambda file: written(file, 0o604), "can be read or written by other users"),
        (lambda file: written(file, 0o620), "can be read or written by other users"),
        (lambda file: written(file, text=""), "contains no token"),
        (lambda file: written(file, text="short"), "contains no token"),
        (lambda file: written(file, text=TOKEN + "\nX: y"), "contains no token"),
        (lambda file: file.write_bytes(b"\xff" * 1_000_000) and file.chmod(0o600), "contains no token"),
        (lambda file: os.mkfifo(file, 0o600), "is no regular file"),
        (linked, "is a link"),
    ],
)
def test_a_file_that_others_may_know_is_replaced_and_that_is_said(
    file: Path, spoil: Callable[[Path], object], said: str
) -> None:
    spoil(file)
    with pytest.raises((UnfitError, OSError)):
        read_token(file)
    made = keep_token(file)
    assert made.value != TOKEN
    assert made.trouble is not None
    assert said in made.trouble
    assert str(file) in made.trouble
    assert keep_token(file).value == made.value
    assert stat.S_IMODE(file.lstat().st_mode) == 0o600


def test_a_file_of_another_user_is_replaced(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(file)
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    made = keep_token(file)
    assert made.value != TOKEN
    assert "belongs to another user" in (made.trouble or "")


def test_where_no_file_can_be_had_the_token_is_this_processes_alone(tmp_path: Path) -> None:
    assert keep_token(None).file is None
    (tmp_path / "directory").mkdir()
    for place in (tmp_path / "gone" / "t", tmp_path / "directory"):
        made = keep_token(place)
        assert (len(made.value), made.file) == (43, None)
        assert "is only in this process" in (made.trouble or "")


def test_processes_that_start_at_once_agree(file: Path) -> None:
    found: list[str] = []
    start = threading.Barrier(8)

    def begin() -> None:
        start.wait()
        found.append(keep_token(file).value)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///var/a.db", Path("var/a.db.admin-token")),
        ("sqlite:////abs/a", Path("/abs/a.admin-token")),
        ("memory://", None),
        ("redis://h:1/0", None),
    ],
)
def test_it_lies_beside_the_store(url: str, expected: Path | None) -> None:
    assert token_file(load_text("c.yaml", f"store: {{url: '{url}'}}", {})) == expected
