"""What is published of a version: one number everywhere, and files that anybody can build again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VERSIONS = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\S+)$", CHANGELOG, re.MULTILINE)


def test_the_newest_version_of_the_changelog_is_the_version() -> None:
    assert VERSIONS[0][0] == PROJECT["version"] == version("concertina")


def test_the_changelog_has_what_is_unreleased_on_top_and_versions_downwards_with_dates() -> None:
    headings = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert headings == ["[Unreleased]", *(f"[{number}] - {day}" for number, day in VERSIONS)]
    assert sorted(VERSIONS, key=lambda row: [*map(int, row[0].split("."))], reverse=True) == VERSIONS
    assert all(date.fromisoformat(day) for _, day in VERSIONS)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert {*re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE)} <= kinds


def test_every_version_of_the_changelog_has_its_link() -> None:
    links = dict(re.findall(r"^\[(.+)\]: (\S+)$", CHANGELOG, re.MULTILINE))
    newest = VERSIONS[0][0]
    assert links.pop("Unreleased").endswith(f"compare/v{newest}...HEAD")
    assert [*links] == [number for number, _ in VERSIONS]
    assert all(link.endswith(f"v{number}") for number, link in links.items())


def test_the_pythons_of_the_classifiers_are_those_that_are_required_and_made_for() -> None:
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()  # type: ignore[union-attr]
    named = [f"Programming Language :: Python :: 3.{minor}" for minor in range(int(low), int(high))]
    assert [line for line in PROJECT["classifiers"] if line.startswith("Programming")] == named
    assert f"(3, {low}) <= sys.version_info[:2] <= (3, {int(high) - 1})" in (ROOT / "Makefile").read_text("utf-8")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def committed(*folders: str) -> set[str]:
    """The files of the commit that is checked out."""
    return {*git("ls-tree", "-r", "--name-only", "-z", "HEAD", *folders).split("\0")} - {""}


def built(into: Path) -> dict[str, bytes]:
    """The files of a release of the commit that is checked out, by name."""
    if subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("this is no git checkout: run `git clone`")
    command = [sys.executable, ".ci/release.py", "--untagged", os.path.relpath(into, ROOT)]  # as the Makefile does
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return {file.name: file.read_bytes() for file in into.iterdir()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return built(tmp_path_factory.mktemp("release"))


def one(files: dict[str, bytes], suffix: str) -> bytes:
    (found,) = (content for name, content in files.items() if name.endswith(suffix))
    return found


@pytest.mark.slow
def test_two_builds_of_a_commit_are_the_same_bytes(files: dict[str, bytes], tmp_path: Path) -> None:
    assert built(tmp_path) == files
    assert len(files) == 4


@pytest.mark.slow
def test_the_checksums_are_those_of_the_files(files: dict[str, bytes]) -> None:
    listed = dict(line.split("  ")[::-1] for line in files["SHA256SUMS"].decode().splitlines())
    assert listed == {n: hashlib.sha256(f).hexdigest() for n, f in files.items() if n != "SHA256SUMS"}


@pytest.mark.slow
def test_the_wheel_holds_both_packages_with_their_data_and_licences(files: dict[str, bytes], tmp_path: Path) -> None:
    (wheel := tmp_path / "a.whl").write_bytes(one(files, ".whl"))
    names = {*zipfile.ZipFile(wheel).namelist()}
    assert committed("policies", "proxy") <= names
    licences = {name.rpartition("/licenses/")[2] for name in names if "dist-info/licenses/" in name}
    assert licences == {"LICENSE", "apache-2.0.txt", "litellm.txt", "tiktoken.txt"}


@pytest.mark.slow
def test_the_source_archive_holds_what_the_commit_does(files: dict[str, bytes], tmp_path: Path) -> None:
    (archive := tmp_path / "a.tar.gz").write_bytes(one(files, ".tar.gz"))
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    assert committed() <= held


@pytest.fixture
def bom(files: dict[str, bytes]) -> dict[str, Any]:
    text = one(files, ".cdx.json").decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    return dict(json.loads(text))


@pytest.mark.slow
def test_the_sbom_names_every_package_of_the_locks_with_its_hashes(bom: dict[str, Any]) -> None:
    def pinned(lock: str) -> set[tuple[str, str]]:
        return {*re.findall(r"^([\w.-]+)==([^ ;\\]+)", git("show", f"HEAD:{lock}"), re.MULTILINE)}

    listed = {(part["name"], part["version"]): part for part in bom["components"]}
    assert listed.keys() == pinned("requirements-image.lock")
    required = {key for key, part in listed.items() if part["scope"] == "required"}
    assert required == pinned("requirements.lock")
    assert all(part["hashes"] for part in listed.values())
    assert sum("licenses" in part for part in listed.values()) > 0.9 * len(listed)


@pytest.mark.slow
def test_the_sbom_says_what_needs_what(bom: dict[str, Any]) -> None:
    needs = {
        entry["ref"].partition("@")[0].rpartition("/")[2]: entry.get("dependsOn", []) for entry in bom["dependencies"]
    }
    assert any("litellm@" in ref for ref in needs["concertina"])
    assert any("boto3@" in ref for ref in needs["litellm"])
    assert bom["metadata"]["component"]["version"] == PROJECT["version"]


@pytest.mark.slow
def test_a_release_needs_the_tag_of_its_version(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    if subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(clone)], check=False).returncode:
        pytest.skip("this is no git checkout: run `git clone`")
    command = [sys.executable, str(clone / ".ci/release.py"), str(tmp_path / "dist")]
    subprocess.run(["git", "-C", str(clone), "tag", "-d", f"v{PROJECT['version']}"], check=False, capture_output=True)
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("this commit is not tagged v")
    assert not (tmp_path / "dist").exists()
