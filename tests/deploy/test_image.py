"""The image: built and run if there is a builder, else its steps in an environment of their own, as any user."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.servers import reserve_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", "")
# One that no system knows, of the group that OpenShift gives it.
ANY_USER = 1_000_680_000


def instructions(name: str, stage: int) -> list[str]:
    """What follows this instruction in a stage of the Dockerfile."""
    return re.findall(rf"^{name} (.+)$", re.split(r"^FROM .+$", TEXT, flags=re.MULTILINE)[stage], re.MULTILINE)


def words(name: str) -> list[str]:
    """Of an instruction that is a list, in the last stage."""
    (found,) = instructions(name, 2)
    return list(json.loads(found))


def builder() -> str | None:
    """A program that can build images here, which is more than being installed."""
    for name in ("docker", "podman"):
        if shutil.which(name) and not subprocess.run([name, "info"], capture_output=True, check=False).returncode:
            return name
    return None


def test_what_is_copied_is_let_through() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").split()
    copied = [source for copy in instructions("COPY", 1) for source in copy.split()[:-1]]
    copied += [copy.split()[0] for copy in instructions("COPY", 2) if not copy.startswith("--from")]
    assert [source for source in copied if f"!{source}" not in lines] == []
    assert "*" in lines


def test_the_entry_point_is_the_command_and_serves_by_default() -> None:
    assert (words("ENTRYPOINT"), words("CMD")[0]) == (["concertina"], "serve")
    assert instructions("USER", 2) == ["10001"]
    assert {"title", "description", "licenses"} == set(re.findall(r"org\.opencontainers\.image\.(\w+)=", TEXT))


@pytest.mark.skipif(builder() is None, reason="no builder of images is installed: install docker or podman")
def test_the_image_is_built_and_runs_as_any_user() -> None:
    program = builder()
    assert program is not None
    subprocess.run([program, "build", "-t", "concertina-test", "."], cwd=ROOT, check=True)
    run = [program, "run", "--rm", "--read-only", "--tmpfs", "/tmp", "--user", f"{ANY_USER}:0", "concertina-test"]
    ended = subprocess.run([*run, "check"], capture_output=True, text=True, check=False)
    assert (ended.returncode, "/etc/concertina/config.yaml" in ended.stdout) == (0, True), ended.stderr


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """A folder with what the image has: /opt/venv by the build's own steps, /etc, /data, /tmp."""
    if not os.environ.get("CI") or builder() is not None:
        pytest.skip("the image's packages are installed in CI only: set CI=true")
    # Not below pytest's own, which other users may not enter.
    with tempfile.TemporaryDirectory(prefix="concertina-image-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        app = folder / "app"
        app.mkdir()
        for copy in instructions("COPY", 1):
            *sources, _ = copy.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, app / source, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / source, app)
        for step in instructions("RUN", 1):
            step = step.replace("/opt/venv", str(folder / "venv")).replace(" --no-cache-dir", "")
            command = step.replace("python -m", f"{shlex.quote(sys.executable)} -m", 1)
            subprocess.run(["sh", "-c", f"umask 022; {command}"], cwd=app, check=True, capture_output=True)
        shutil.copy(ROOT / "config.yaml", folder)
        for name in ("data", "tmp"):
            (folder / name).mkdir()
            (folder / name).chmod(0o770)
        yield folder


def environment(folder: Path) -> dict[str, str]:
    """What ENV says, with our paths."""
    found = dict(pair.split("=", 1) for pair in shlex.split(instructions("ENV", 2)[0]))
    moved = {"/opt/venv": folder / "venv", "/etc/concertina": folder}
    for name, value in found.items():
        for path, ours in moved.items():
            value = value.replace(path, str(ours))
        found[name] = value.replace("$PATH", os.environ["PATH"])
    return {**found, "TMPDIR": str(folder / "tmp")}


def as_any_user() -> list[str]:
    """What a command is put behind. It may read all, since the Python of a test may lie in root's home; write it may
    only what the user may. Nothing if we are not root."""
    if os.geteuid() != 0:
        return []
    capabilities = [f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")]
    return ["setpriv", f"--reuid={ANY_USER}", "--regid=0", "--clear-groups", "--no-new-privs", *capabilities]


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A command of the image, as any user of group 0."""
    return subprocess.Popen(
        [*as_any_user(), folder / "venv/bin/concertina", *words],
        cwd=folder / "data",
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_its_steps_make_commands_that_any_user_can_run(installed: Path) -> None:
    python = installed / "venv/bin/python"
    subprocess.run([python, "-c", "import mcp, opentelemetry.sdk, opentelemetry.exporter.otlp.proto.http"], check=True)
    with started(installed, "check") as process:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, str(installed / "config.yaml") in out) == (0, True), err
    with started(installed, "init") as process:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, "\nwrote config.yaml" in out) == (0, True), err
    (installed / "data/config.yaml").unlink()


def test_its_server_runs_as_any_user_writes_below_data_alone_and_ends_in_order(installed: Path) -> None:
    port = reserve_port()
    arguments = words("CMD")
    arguments[arguments.index("--host") + 1] = "127.0.0.1"
    with started(installed, *arguments, "--port", str(port)) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("concertina listens")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
                assert json.load(answer) == {"status": "ready", "store": "up"}
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    (stopping,) = [line for line in lines if line["event"] == "stopping"]
    assert (process.returncode, stopping["drain_delay_s"]) == (0, 5)
    written = {path.name for path in (installed / "data").rglob("*") if path.is_file()}
    assert fnmatch.filter(written, "concertina.db*")
