"""The command `concertina serve` as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


COMMAND = Path(sys.executable).with_name("concertina")


@contextmanager
def served(
    file: Path, limits: str = "", program: Sequence[str | Path] = (COMMAND,)
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process and its port, once it listens; `limits` are commands for the shell that becomes it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CONCERTINA_", "OPENAI_"))}
    command = ["sh", "-c", f'{limits}\nexec "$0" "$@"', *program, "serve", str(file), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=file.parent
    ) as process:
        late = threading.Timer(60, process.kill)
        late.start()
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            yield process, int(first.partition(",")[0].rpartition(":")[2])
        finally:
            late.cancel()
            process.kill()


def event(process: subprocess.Popen[str], name: str) -> dict[str, object]:
    """The next line of the log about this."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{") and (found := json.loads(line))["event"] == name:
            return dict(found)
    pytest.fail(f"it ended without a line about {name}")


def config(file: Path, address: str, **more: object) -> None:
    settings = {"store": {"url": "memory://"}, "upstreams": {"main": {"base_url": f"{address}/v1"}}, **more}
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
