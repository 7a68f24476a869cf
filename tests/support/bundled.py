"""Writes proxy/models/bundled from the litellm that is installed: `python -m tests.support.bundled`."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

from proxy.models.encodings import BUNDLED
from proxy.models.table import TABLE

# cl100k_base, p50k_base and o200k_base: tiktoken finds them by the SHA-1 of their addresses, and checks their SHA-256.
TOKENIZERS = (
    "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "ec7223a39ce59f226a68acc30dc1af2788490e15",
    "fb374d419588a4632f3f557e76b4b70aebbca790",
    "anthropic_tokenizer.json",
)
# What proxy/models/table.py reads of a row.
_READ = re.compile(
    r"mode|max_(?:in|out)put_tokens|(?:in|out)put_cost_per_token(?:_above_\d+k_tokens)?"
    r"|cache_(?:creation|read)_input_token_cost(?:_above_1hr)?(?:_above_\d+k_tokens)?"
)


def litellm_directory() -> Path | None:
    """Where litellm is installed, found without importing it; None if it is not."""
    spec = importlib.util.find_spec("litellm")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def table_file(litellm: Path) -> Path:
    return litellm / "model_prices_and_context_window_backup.json"


def bundle(litellm: Path) -> dict[str, bytes]:
    """The bundled files by name: tokenizers as they are, and a line for each model with what is read of its row."""
    files = {name: (litellm / "litellm_core_utils/tokenizers" / name).read_bytes() for name in TOKENIZERS}
    rows = json.loads(table_file(litellm).read_bytes())
    read = {name: {key: value for key, value in row.items() if _READ.fullmatch(key)} for name, row in rows.items()}
    # Its sample row holds sentences where numbers belong.
    lines = [
        f"{json.dumps(name)}:{json.dumps(row, separators=(',', ':'))}"
        for name, row in read.items()
        if name != "sample_spec" and ("max_input_tokens" in row or "input_cost_per_token" in row)
    ]
    return files | {TABLE.name: ("{\n" + ",\n".join(lines) + "\n}\n").encode()}


def main() -> None:
    litellm = litellm_directory()
    if litellm is None:
        raise SystemExit("litellm is not installed; make setup")
    for name, content in bundle(litellm).items():
        (BUNDLED / name).write_bytes(content)


if __name__ == "__main__":
    main()
