"""Other proxies, measured beside ours where they are on the PATH: one process each, counting nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.servers import Server, free_port, process

_LITELLM = """
model_list:
- model_name: gpt-4o
  litellm_params: {model: openai/gpt-4o, api_base: 'http://127.0.0.1:@upstream@/v1', api_key: sk-bench}
"""


@dataclass(frozen=True)
class _Peer:
    """A command in which @port@, @upstream@ and @config@ are filled in.

    headers: lines that its requests need beside others.
    """

    name: str
    command: tuple[str, ...]
    config: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    headers: str = ""


_PEERS = (
    _Peer(
        "litellm",
        ("litellm", "--config", "@config@", "--host", "127.0.0.1", "--port", "@port@"),
        _LITELLM,
        # The price table is fetched at start otherwise.
        {"LITELLM_MASTER_KEY": "sk-bench", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    _Peer(
        "portkey",
        ("gateway", "--headless", "--port=@port@"),
        environment={"TRUSTED_CUSTOM_HOSTS": "127.0.0.1"},
        headers="x-portkey-provider: openai\r\nx-portkey-custom-host: http://127.0.0.1:@upstream@/v1\r\n",
    ),
)


@contextmanager
def installed(target: Server) -> Iterator[list[Server]]:
    """Those that are installed, in front of this upstream."""
    with ExitStack() as stack:
        yield [stack.enter_context(_served(peer, target)) for peer in _PEERS if shutil.which(peer.command[0])]


@contextmanager
def _served(peer: _Peer, target: Server) -> Iterator[Server]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"

        def filled(text: str) -> str:
            values = {"@port@": str(port), "@upstream@": str(target.port), "@config@": str(config)}
            for name, value in values.items():
                text = text.replace(name, value)
            return text

        config.write_text(filled(peer.config))
        environment = {**os.environ, **peer.environment}
        with process([filled(part) for part in peer.command], port, Path(folder), environment) as pid:
            yield Server(peer.name, port, pid, filled(peer.headers))
