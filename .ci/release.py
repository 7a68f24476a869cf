"""What is published of a version: `python .ci/release.py DIRECTORY`, which is `make release`.

Source archive, wheel, SBOM and checksums are made of the commit that is checked out, not of its working tree, and have
no time but the commit's: the same commit and the same tools give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).parents[1]
SUMS = "SHA256SUMS"
# What runs it, and that with all extras.
LOCKS = ("requirements.lock", "requirements-image.lock")


@dataclass(slots=True)
class Pin:
    """A package of a lock: the SHA-256 of its files, and the packages that need it."""

    version: str
    hashes: set[str] = field(default_factory=set)
    needed_by: set[str] = field(default_factory=set)


def pins_of(lock: str) -> dict[str, Pin]:
    """The packages of a lock by name; one that has several rows, by platform, is one."""
    pins: dict[str, Pin] = {}
    for entry in re.split(r"\n(?=\w)", lock.strip()):
        name, version = re.match(r"([\w.-]+)==([^ ;\\]+)", entry).groups()  # type: ignore[union-attr]
        pin = pins.setdefault(name, Pin(version))
        pin.hashes |= set(re.findall(r"--hash=sha256:(\w+)", entry))
        pin.needed_by |= set(re.findall(r"^ +#(?: via)? +([\w.-]+)", entry, re.MULTILINE))
    return pins


def licence_of(name: str, version: str) -> License | None:
    """As the installed package of this version declares it; None if it does not, or is not installed."""
    try:
        about = metadata(name)
    except PackageNotFoundError:
        return None
    named = about.get("License", "UNKNOWN")
    classifiers = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier", []) if line.startswith("License")]
    by_name = classifiers if "\n" in named or named == "UNKNOWN" else [named]
    declared = about.get("License-Expression") or "; ".join(by_name)
    if about["Version"] != version or not declared:
        return None
    return LicenseFactory().make_from_string(declared)


def sbom(version: str, licence: str, commit: str, at: datetime, run: dict[str, Pin], every: dict[str, Pin]) -> str:
    """CycloneDX of all that the locks install; what only the extras and the build need is optional."""

    def component(name: str, version: str, pin: Pin | None) -> Component:
        found = LicenseFactory().make_from_string(licence) if pin is None else licence_of(name, version)
        purl = PackageURL("pypi", None, name, version)
        return Component(
            name=name,
            version=version,
            type=ComponentType.APPLICATION if pin is None else ComponentType.LIBRARY,
            bom_ref=str(purl),
            purl=purl,
            licenses=[found] if found else [],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=value) for value in (pin.hashes if pin else ())],
            scope=None if pin is None else ComponentScope.REQUIRED if name in run else ComponentScope.OPTIONAL,
        )

    bom = Bom(serial_number=uuid5(NAMESPACE_URL, f"pkg:pypi/concertina@{version}?commit={commit}"))
    own = component("concertina", version, None)
    packages = {name: component(name, pin.version, pin) for name, pin in every.items()}
    bom.metadata.timestamp, bom.metadata.component = at, own
    for name, package in packages.items():
        bom.components.add(package)
        for needing in every[name].needed_by:
            bom.register_dependency(packages.get(needing, own), [package])
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def build(source: Path, target: str, into: Path, epoch: str) -> Path:
    """The file that hatchling makes of a source tree."""
    before = set(into.iterdir())
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    subprocess.run(
        command, cwd=source, env=os.environ | {"SOURCE_DATE_EPOCH": epoch}, stdout=subprocess.DEVNULL, check=True
    )
    (made,) = set(into.iterdir()) - before
    return made


def unpack(archive: Path, into: Path) -> Path:
    """The folder in which the archive's files lie."""
    with tarfile.open(archive) as files:
        files.extractall(into, filter="data")
    (folder,) = into.iterdir()
    return folder


def release(commit: str, into: Path) -> None:
    """Write the four files; the wheel is built from the source archive, so that one is known to be whole."""
    epoch = git("log", "-1", "--format=%ct", commit)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        archive = work / "tree.tar"
        archive.write_bytes(
            subprocess.run(
                ["git", "archive", "--prefix=tree/", commit], cwd=ROOT, capture_output=True, check=True
            ).stdout
        )
        for folder in ("tree", "source"):
            (work / folder).mkdir()
        tree = unpack(archive, work / "tree")
        source = unpack(build(tree, "sdist", into, epoch), work / "source")
        build(source, "wheel", into, epoch)
        project = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["project"]
        run, every = (pins_of((source / name).read_text("utf-8")) for name in LOCKS)
        at = datetime.fromtimestamp(int(epoch), UTC)
        text = sbom(project["version"], project["license"], commit, at, run, every)
    (into / f"concertina-{project['version']}.cdx.json").write_text(text, "utf-8")
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(into.iterdir())]
    (into / SUMS).write_text("".join(sums), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Source archive, wheel, SBOM and checksums of the commit checked out.")
    parser.add_argument("directory", type=Path, help="where they are written; made, and must be empty")
    parser.add_argument("--untagged", action="store_true", help="for a trial: the commit needs no tag of its version")
    given = parser.parse_args()
    commit = git("rev-parse", "HEAD")
    version = tomllib.loads(git("show", f"{commit}:pyproject.toml"))["project"]["version"]
    if not given.untagged and f"v{version}" not in git("tag", "--points-at", commit).split():
        sys.exit(f"this commit is not tagged v{version}: git tag -s v{version}, or --untagged for a trial")
    given.directory.mkdir(parents=True, exist_ok=True)
    if any(given.directory.iterdir()):
        sys.exit(f"{given.directory} is not empty")
    release(commit, given.directory.resolve())


if __name__ == "__main__":
    main()
