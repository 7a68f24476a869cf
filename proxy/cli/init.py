"""`concertina init`: a short config to begin with, and what the agents need."""

import json
import os
import sys

from proxy.cli.common import CONFIG, err, fail
from proxy.cli.printing import client, clients, known_client
from proxy.cli.running import configured_url
from proxy.config.loading import ConfigError, load_text, notes
from proxy.server.addresses import of_proxy

_UPSTREAM = """\
  # The server that answers: its address up to and including /v1.
  main: {{base_url: {url}}}
"""
_PROVIDERS = """\
  # Where requests go; clients send their own keys, unless one is set as api_key.
  main: {base_url: "https://api.openai.com/v1"}
  anthropic: {base_url: "https://api.anthropic.com/v1", auth: x-api-key}
"""
_CONFIG = """\
# Concertina's config. What it does not say is at its default; `concertina schema` describes every setting,
# `concertina check` says what is wrong with this file, and a proxy that runs takes it when it is saved.

server:
  # 0.0.0.0 for every interface: then give the tenants keys, and set closed: true.
  host: 127.0.0.1
  port: 8795

upstreams:
{upstreams}
# What is known of a model that no table knows:
# models:
#   - {{match: "my-model", context_window: 32768}}

# What is done to long conversations: default, coding-agent, chat, cost, or observe to change nothing at first.
tenants:
  default: {{policy: default}}
"""
_NEXT = """\
wrote {file}, and above is what agents need; next:
  concertina doctor     # whether the upstreams, their keys and the store are well
  concertina serve      # the proxy, at {url}
"""


def init(*, agent: str | None = None, upstream: str | None = None) -> None:
    """Write a short config.yaml, never over one, and print what agents need and what to do next.

    :param agent: Print what this one needs alone; beside a config that is there already, nothing is written.
    :param upstream: Server that answers, in place of OpenAI's and Anthropic's.
    """
    agents = clients() if agent is None else [known_client(agent)]
    if agent is not None and upstream is None and CONFIG.exists():
        sys.stdout.write(client(agents[0], configured_url(None)))
        return
    upstreams = _PROVIDERS if upstream is None else _UPSTREAM.format(url=json.dumps(upstream))
    text = _CONFIG.format(upstreams=upstreams)
    try:
        config = load_text(str(CONFIG), text, os.environ)
    except ConfigError as error:
        fail("\n".join(f"--upstream {upstream}: {problem.message}" for problem in error.problems))
    try:
        with CONFIG.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        fail(f"{CONFIG} is there already; `concertina check` tells whether it is right, `--agent NAME` what one needs")
    except OSError as error:
        fail(f"{CONFIG} cannot be written: {error.strerror}; go to a directory of yours")
    for note in notes(config):
        err(f"note: {note}")
    url = of_proxy(config) or ""
    sys.stdout.write("\n".join([*(client(name, url) for name in agents), _NEXT.format(file=CONFIG, url=url)]))
