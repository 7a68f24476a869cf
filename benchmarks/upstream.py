"""The tests' model server as a process: answers at once, counts nothing."""

from __future__ import annotations

import sys

import uvicorn

from proxy.server.process import listen, settings
from tests.support.model_server import ModelServer

if __name__ == "__main__":
    listener = listen("127.0.0.1", int(sys.argv[1]))
    config = settings(ModelServer(window=None, remember=1))
    config.lifespan = "off"
    uvicorn.Server(config).run(sockets=[listener])
