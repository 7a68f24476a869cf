"""A request beside its contents, and as it lies in files."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from proxy.dialects.base import Fields, RequestSettings
from proxy.dialects.json_array import Array, members_of, scalar, text_at, with_field

ARRAY = Array(
    "contents",
    ("systemInstruction", "tools", "toolConfig", "generationConfig", "cachedContent", "labels", "safetySettings"),
)
LIMIT = "maxOutputTokens"
FIELDS: Sequence[str] = ("systemInstruction", "tools", "generationConfig")


class _Generation(msgspec.Struct):
    max_output: msgspec.Raw = msgspec.field(name=LIMIT, default=msgspec.Raw())
    candidates: msgspec.Raw = msgspec.field(name="candidateCount", default=msgspec.Raw())


def settings(fields: Fields) -> RequestSettings:
    """Model and stream are said by the path."""
    try:
        generation = msgspec.json.decode(fields["generationConfig"] or b"{}", type=_Generation)
    except msgspec.DecodeError:
        generation = _Generation()
    limit = scalar(generation.max_output)
    passthrough = None if scalar(generation.candidates) in (None, 1) else "several_choices"
    return RequestSettings(
        model="",
        stream=False,
        max_output=limit if isinstance(limit, int) and limit > 0 else None,
        output_key=LIMIT,
        definitions=(fields["systemInstruction"], fields["tools"]),
        usage_fields={},
        passthrough="bound_body" if fields["cachedContent"] else passthrough,
        label=text_at(fields["labels"], ("session",)) or "" if fields["labels"] else "",
    )


def with_output(body: bytes, key: str, limit: int) -> bytes:
    """The limit stands among the settings of a generation, of which the others keep their bytes."""
    member = members_of(body).get("generationConfig", b":{}").partition(b":")[2].strip()
    return with_field(body, "generationConfig", msgspec.Raw(with_field(member, key, limit)))


def is_body(keys: Collection[str]) -> bool:
    return "contents" in keys


def is_item(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("parts"), list)


def as_sent(item: Mapping[str, object]) -> Mapping[str, object]:
    return item
