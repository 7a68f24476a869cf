"""`concertina print`: packaged files for monitoring, deployment and clients."""

import gzip
import io
import sys
import tarfile
from collections.abc import Iterator
from difflib import get_close_matches
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Literal, get_args

from proxy.cli.common import fail
from proxy.cli.parameters import ConfigPath
from proxy.cli.running import configured_url

_FILES = {
    "grafana": "grafana/concertina.json",
    "alerts": "prometheus/alerts.yml",
    "compose": "compose.yaml",
    "systemd": "concertina.service",
    "socket": "concertina.socket",
    "k8s": "kubernetes.yaml",
    "k8s-scaling": "kubernetes-scaling.yaml",
}
# Other names of clients, without separators between words.
_ALIASES = {
    "cc": "claude-code",
    "claude": "claude-code",
    "claudeagentsdk": "claude-code",
    "codexcli": "codex",
    "openaicodex": "codex",
    "qwen": "qwen-code",
    "qwencli": "qwen-code",
    "gemini": "gemini-cli",
    "google": "gemini-cli",
    "geminicode": "gemini-cli",
    "langgraph": "langchain",
    "langchainopenai": "langchain",
    "langchainanthropic": "langchain",
    "openaipython": "openai",
    "openainode": "openai",
    "openaijs": "openai",
    "openaisdk": "openai",
    "anthropicpython": "anthropic",
    "anthropicnode": "anthropic",
    "anthropicsdk": "anthropic",
    "anthropictypescript": "anthropic",
    "agents": "openai-agents",
    "agentssdk": "openai-agents",
    "openaiagentssdk": "openai-agents",
    "pydantic": "pydantic-ai",
    "azureopenai": "azure",
    "continuedev": "continue",
}
_CHART = "chart"
_CLIENTS = "clients"
_DEPLOY = resources.files("proxy") / "deploy"


_What = Literal["grafana", "alerts", "compose", "systemd", "socket", "k8s", "k8s-scaling", "helm", "client"]


def print_file(
    what: _What | None = None,
    name: str | None = None,
    /,
    *,
    config: ConfigPath = None,
) -> None:
    """Print a file to start from: a Grafana dashboard, alerts, a deployment, or the settings of a client.

    `helm` is a chart as an archive; redirect it to a file.

    :param name: Name of the client.
    """
    if what is None:
        fail(f"name what to print: {', '.join(get_args(_What))}; for a client also its name, as in `client codex`")
    if what == "helm":
        if sys.stdout.isatty():
            fail("a chart is an archive, which a terminal cannot show: concertina print helm > concertina.tgz")
        sys.stdout.buffer.write(chart())
        return
    if what != "client":
        sys.stdout.write(_text(_FILES[what]))
        return
    sys.stdout.write(client(known_client(name), configured_url(config)))


def known_client(name: str | None) -> str:
    """Return the client with this name or alias. End the command if no client has the name.

    Separators do not count, and a name may lack its last words.
    """
    names = clients()
    wanted = _letters(name or "")
    by_letters = {**{_letters(each): each for each in names}, **_ALIASES}
    exact = [by_letters[wanted]] if wanted in by_letters else []
    matches = exact or [each for each in names if wanted and _letters(each).startswith(wanted)]
    if len(matches) != 1:
        nearest = get_close_matches(wanted, by_letters, n=1)
        hint = f"did you mean {by_letters[nearest[0]]}? " if nearest else ""
        unknown = "name a client" if name is None else f"no client is called {name}"
        fail(f"{unknown}; {hint}known are {', '.join(names)}; most others use the settings of openai")
    return matches[0]


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def client(name: str, address: str) -> str:
    """Return the settings that a client needs to reach the proxy at this address."""
    return _text(f"{_CLIENTS}/{name}.txt").replace("{address}", address)


def clients() -> list[str]:
    """Return the names of all clients with known settings."""
    return sorted(file.name.removesuffix(".txt") for file in (_DEPLOY / _CLIENTS).iterdir())


def chart() -> bytes:
    """Return the Helm chart as an archive, the same bytes every time."""
    plain = io.BytesIO()
    with tarfile.open(None, "w", plain) as archive:
        for name, content in sorted(_files(_DEPLOY / _CHART)):
            entry = tarfile.TarInfo(f"concertina/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)


def _files(folder: Traversable, path: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield path and content of every file in a folder."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{path}{entry.name}/")
        else:
            yield f"{path}{entry.name}", entry.read_bytes()


def _text(name: str) -> str:
    return _DEPLOY.joinpath(name).read_text("utf-8")
