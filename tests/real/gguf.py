"""The tokenizer inside a GGUF file, as a tokenizer.json: byte-level BPE with the splitting of SmolLM and GPT-2.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

_NUMBERS = {**dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))), 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9
_CONTROL = 3


def write_tokenizer(model: Path, path: Path) -> None:
    """Write the model's tokenizer.json."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    facts = _metadata(model)
    if facts["tokenizer.ggml.pre"] != "smollm":
        raise ValueError("another way of splitting than SmolLM's")
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]  # type: ignore[attr-defined]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))  # type: ignore[arg-type]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    controls = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]  # type: ignore[call-overload]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in controls])
    tokenizer.save(str(path))


def _metadata(model: Path) -> dict[str, object]:
    with model.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("no GGUF file")
        _, _, entries = struct.unpack("<IQQ", file.read(20))
        return {_text(file): _value(file, _number(file, "<I")) for _ in range(entries)}


def _value(file: BinaryIO, kind: int) -> object:
    if kind == _TEXT:
        return _text(file)
    if kind == _ARRAY:
        inner, length = struct.unpack("<IQ", file.read(12))
        return [_value(file, inner) for _ in range(length)]
    return _number(file, _NUMBERS[kind])


def _text(file: BinaryIO) -> str:
    return file.read(_number(file, "<Q")).decode()


def _number(file: BinaryIO, form: str) -> int:
    number: int = struct.unpack(form, file.read(struct.calcsize(form)))[0]
    return number
