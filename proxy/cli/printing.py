"""`concertina print`: files that come with the package, for those who watch it, run it and use it."""

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
# Other names of clients, without what joins their words.
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
    """Print a file to go on from: a Grafana dashboard, Prometheus' alerts, how to run it, or what a client needs.

    `helm` is a chart's archive, for a file.

    :param name: Of the client.
    """
    if what is None:
        fail(f"name what to print: {', '.join(get_args(_What))}; of a client its name too, as in `client codex`")
    if what == "helm":
        if sys.stdout.isatty():
            fail("a chart is an archive: concertina print helm > concertina.tgz")
        sys.stdout.buffer.write(chart())
        return
    if what != "client":
        sys.stdout.write(_text(_FILES[what]))
        return
    sys.stdout.write(client(known_client(name), configured_url(config)))


def known_client(name: str | None) -> str:
    """Return the client of this name or alias, however its words are joined. A name may lack its last words. End the
    command if no client has the name."""
    names = clients()
    wanted = _letters(name or "")
    by_letters = {**{_letters(each): each for each in names}, **_ALIASES}
    exact = [by_letters[wanted]] if wanted in by_letters else []
    found = exact or [each for each in names if wanted and _letters(each).startswith(wanted)]
    if len(found) != 1:
        nearest = get_close_matches(wanted, by_letters, n=1)
        hint = f"did you mean {by_letters[nearest[0]]}? " if nearest else ""
        unknown = "name a client" if name is None else f"no client is called {name}"
        fail(f"{unknown}; {hint}known are {', '.join(names)}; most others take what openai needs")
    return found[0]


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def client(name: str, address: str) -> str:
    """What a client needs to reach the proxy at this address."""
    return _text(f"{_CLIENTS}/{name}.txt").replace("{address}", address)


def clients() -> list[str]:
    """Those of which it is known what they need."""
    return sorted(file.name.removesuffix(".txt") for file in (_DEPLOY / _CLIENTS).iterdir())


def chart() -> bytes:
    """The Helm chart as an archive, the same bytes every time."""
    plain = io.BytesIO()
    with tarfile.open(None, "w", plain) as archive:
        for name, content in sorted(_files(_DEPLOY / _CHART)):
            entry = tarfile.TarInfo(f"concertina/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)


def _files(folder: Traversable, path: str = "") -> Iterator[tuple[str, bytes]]:
    """Paths and contents of all files of a folder."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{path}{entry.name}/")
        else:
            yield f"{path}{entry.name}", entry.read_bytes()


def _text(name: str) -> str:
    return _DEPLOY.joinpath(name).read_text("utf-8")
