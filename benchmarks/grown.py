"""`python -m benchmarks.grown FOLDER --window 200000`: writes long sessions for `benchmarks.price`.

They are those of `benchmarks.fresh` one behind the other, with larger files and logs in larger windows, as agents have
them: 1.3 to 2.5 windows long, of six clients. One has tools and instructions that take a tenth of the window.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.fresh import sessions
from benchmarks.fresh.wire import Message, play
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer

_MODEL = "gpt-4o"
# Windows that each kind is long, and the share of one that its instructions take.
_KINDS = {
    "cursor-pt": (1.3, 0.0),
    "opencode-en": (1.7, 0.0),
    "openhands-ko": (2.2, 0.0),
    "aider-en": (1.5, 0.0),
    "ops-it": (2.5, 0.0),
    "cursor-ja": (1.9, 0.1),
}
# Tokens of window for which files and logs are once as large.
_USUAL = 20_000


def grown(name: str, tokens: int, times: int, seed: int, instructions: int) -> Message:
    """Return the request that ends a session of about so many tokens."""
    kind, count = sessions.KINDS[name], Tokenizer().count
    events: list[sessions.Event] = []
    long = 0
    while long < tokens:
        events += sessions.session(kind, seed + len(events), times)
        done = play(kind, events)
        long = count(json.dumps(done.messages, ensure_ascii=False), DEFAULT_ENCODING)
    body = done.body(_MODEL, done.ends[len(done.ends) * tokens // long - 1])
    if instructions:
        text = " ".join(f"rule {i}: keep part {7 * i % 97} of module {i % 13}." for i in range(instructions // 14))
        body["messages"].insert(0, {"role": "system", "content": text})
    return body


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.grown", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--window", type=int, default=200_000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    times = max(1, options.window // _USUAL)
    for number, (name, (windows, share)) in enumerate(_KINDS.items(), 1):
        body = grown(name, int(windows * options.window), times, 100 * number, int(share * options.window))
        (options.folder / f"{name}.json").write_text(json.dumps(body, ensure_ascii=False))


if __name__ == "__main__":
    main()
