"""`concertina init`: a short initial config, and setup instructions for agents."""

import json
import os
import sys

from proxy.cli.common import CONFIG, err, fail
from proxy.cli.printing import client, clients, known_client
from proxy.cli.running import configured_url
from proxy.config.loading import ConfigError, load_text, notes
from proxy.server.addresses import of_proxy

_UPSTREAM = """\
  # The server that answers requests: its address up to and including /v1.
  main: {{base_url: {url}}}
"""
_PROVIDERS = """\
  # The servers that answer requests. Clients send their own keys, unless api_key is set.
  main: {base_url: "https://api.openai.com/v1"}
  anthropic: {base_url: "https://api.anthropic.com/v1", auth: x-api-key}
"""
_CONFIG = """\
# Concertina's config. Every other setting has its default. `concertina schema` describes all settings,
# `concertina check` reports problems of this file, and a running proxy reloads it when it is saved.

server:
  # 0.0.0.0 listens on every interface. Then give the tenants keys, and set closed: true.
  host: 127.0.0.1
  port: 8795

upstreams:
{upstreams}
# The window of a model that is not in the built-in table:
# models:
#   - {{match: "my-model", context_window: 32768}}

# The policy for long conversations: default, coding-agent, chat, cost, or observe to change nothing at first.
tenants:
  default: {{policy: default}}
"""
_NEXT = """\
wrote {file}; the agents' settings are above. Next:
  concertina doctor     # check the upstreams, their keys and the store
  concertina serve      # start the proxy at {url}
"""


def init(*, agent: str | None = None, upstream: str | None = None) -> None:
    """Write a short config.yaml and print what agents need and what to do next. An existing file is never overwritten.

    :param agent: Print only what this one needs; if a config exists, nothing is written.
    :param upstream: Address of the server that answers, instead of OpenAI's and Anthropic's.
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
        fail(f"{CONFIG} exists already; `concertina check` validates it, and `--agent NAME` prints what an agent needs")
    except OSError as error:
        fail(f"{CONFIG} cannot be written: {error.strerror}; change to a directory that you may write to")
    for note in notes(config):
        err(f"note: {note}")
    url = of_proxy(config) or ""
    sys.stdout.write("\n".join([*(client(name, url) for name in agents), _NEXT.format(file=CONFIG, url=url)]))
