"""`concertina print`: files that come with the package, for those who watch it, run it and use it."""

import sys
from importlib import resources
from typing import Literal

from proxy.commands.common import fail
from proxy.commands.parameters import ConfigPath
from proxy.commands.running import configured_url

_FILES = {
    "grafana": "grafana/concertina.json",
    "alerts": "prometheus/alerts.yml",
    "compose": "compose.yaml",
    "systemd": "concertina.service",
    "k8s": "kubernetes.yaml",
}
_CLIENTS = "clients"
_DEPLOY = resources.files("proxy") / "deploy"


def printed(
    what: Literal["grafana", "alerts", "compose", "systemd", "k8s", "client"],
    name: str | None = None,
    /,
    *,
    config: ConfigPath = None,
) -> None:
    """Print a file to go on from: a Grafana dashboard, Prometheus' alerts, how to run it, or what a client needs.

    :param name: Of the client.
    """
    if what != "client":
        sys.stdout.write(_text(_FILES[what]))
        return
    sys.stdout.write(client(known(name), configured_url(config)))


def known(name: str | None) -> str:
    """The client's name; ends the command where it is not known what that needs."""
    names = clients()
    if name is None or name not in names:
        fail(f"name a client: concertina print client {'|'.join(names)}")
    return name


def client(name: str, address: str) -> str:
    """What a client needs to reach the proxy at this address."""
    return _text(f"{_CLIENTS}/{name}.txt").replace("{address}", address)


def clients() -> list[str]:
    """Those of which it is known what they need."""
    return sorted(file.name.removesuffix(".txt") for file in (_DEPLOY / _CLIENTS).iterdir())


def _text(name: str) -> str:
    return _DEPLOY.joinpath(name).read_text("utf-8")
