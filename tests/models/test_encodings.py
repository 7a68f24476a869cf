"""Which encodings a config may name, and what it says of those it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config.loading import ConfigError, load
from proxy.models.encodings import BUNDLED


def problem(directory: Path, encoding: str) -> str:
    file = directory / "config.yaml"
    file.write_text(f"models:\n  - match: local\n    encoding: {encoding}\n")
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    return str(caught.value).removeprefix(f"{file}:3: models[0].encoding: ")


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base", "claude"])
def test_bundled_encodings_go_by_name(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"models: [{{match: local, encoding: {encoding}}}]")
    assert load(file, {}).models[0].encoding == encoding


def test_a_tokenizer_json_goes_by_its_path(tmp_path: Path) -> None:
    path = str(BUNDLED / "anthropic_tokenizer.json")
    file = tmp_path / "config.yaml"
    file.write_text(f"models: [{{match: local, encoding: '{path}'}}]")
    assert load(file, {}).models[0].encoding == path


@pytest.mark.parametrize("encoding", ["deepseek", "p50k_base", "/models/deepseek"])
def test_an_unknown_name_is_told_what_there_is(tmp_path: Path, encoding: str) -> None:
    known = "must be o200k_base, cl100k_base, claude or the path of a tokenizer.json"
    assert problem(tmp_path, encoding) == f"{known}; for other models download theirs"


def test_a_missing_tokenizer_json_is_a_problem_of_the_config(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "tokenizer.json"
    assert problem(tmp_path, str(path)).startswith(f"the file does not exist: {path}; download")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"<html>not found</html>"])
def test_a_broken_tokenizer_json_is_a_problem_of_the_config(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    assert problem(tmp_path, str(path)).startswith("not a tokenizer in the format of Hugging Face (")


def test_an_absurdly_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(200 * 1024 * 1024)
    assert problem(tmp_path, str(path)).startswith("the file is larger than any tokenizer")
