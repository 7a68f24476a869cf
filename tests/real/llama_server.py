"""The real llama.cpp server over one model, until its standard input ends: `MODEL WINDOW [CHAT_TEMPLATE]`."""

from __future__ import annotations

import sys

from xllamacpp import CommonParams, Server  # type: ignore[import-not-found]


def main(model: str, window: str, template: str = "") -> None:
    params = CommonParams()
    params.model.path = model
    params.model_alias = {"smollm2"}
    params.n_ctx = int(window)
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.port = 0
    if template:
        params.chat_template = template
    server = Server(params)
    sys.stdout.write(f"listening on {server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
