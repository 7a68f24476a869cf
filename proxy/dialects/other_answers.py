"""Usage in responses other than conversations: completions, embeddings, images, transcriptions, ranks."""

import re
from collections.abc import Iterable

import msgspec

from proxy.dialects.base import StreamForm, Usage
from proxy.dialects.counted import Tokens

USAGE_KEY = b'"usage"'
STREAM: StreamForm = "events"
_MODEL = re.compile(rb'"model"[ \n]?:[ \n]?"([^"\\]{1,256})"')


class _ReportedTokens(msgspec.Struct):
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    total_tokens: Tokens | None = None

    @property
    def usage(self) -> Usage | None:
        output = self.completion_tokens or self.output_tokens or 0
        prompt = self.prompt_tokens if self.input_tokens is None else self.input_tokens
        if prompt is None and self.total_tokens is not None:
            prompt = max(0, self.total_tokens - output)
        return None if prompt is None else Usage(prompt, output)


class _Reported(msgspec.Struct):
    usage: _ReportedTokens | None = None


_decode = msgspec.json.Decoder(_Reported).decode


def usage(newest_first: Iterable[bytes]) -> Usage | None:
    """Return the newest reported usage; None if there is none."""
    for data in newest_first:
        try:
            reported = _decode(data).usage
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        if reported is not None:
            return reported.usage
    return None


def is_last(data: bytes) -> bool:
    """Return True for the event that ends a stream."""
    return data == b"[DONE]"


def model_in(ends: bytes) -> str:
    """Return the last model named in these ends of a response; empty if there is none."""
    models = _MODEL.findall(ends)
    return models[-1].decode("utf-8", "replace") if models else ""
