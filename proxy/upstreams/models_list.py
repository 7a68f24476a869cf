"""Windows in servers' lists of models, in their own formats."""

import re
from typing import Annotated, Literal

import msgspec

Family = Literal["llama.cpp", "ollama"]

_Tokens = Annotated[int, msgspec.Meta(ge=256, le=100_000_000)]
_NUM_CTX = re.compile(r"^num_ctx\s+(\d{3,8})\s*$", re.MULTILINE)
_FAMILIES: dict[object, Family] = {"llamacpp": "llama.cpp", "library": "ollama"}
# Fields with a window, the most binding first: what is loaded, what is served, what the model supports.
_FIELDS = (
    "loaded_context_length",  # LM Studio
    "max_model_len",  # vLLM, SGLang, LMDeploy
    "n_ctx",
    "context_length",  # OpenRouter, Together, Fireworks, DeepInfra
    "context_window",  # Groq
    "max_context_length",  # Mistral
    "max_input_tokens",  # Anthropic
)
# Objects that hold these fields instead.
_INSIDE = ("top_provider", "limits", "meta", "parameters", "metadata")


class _List(msgspec.Struct):
    data: list[dict[str, msgspec.Raw]] = msgspec.field(default_factory=list)


class _ListedSettings(msgspec.Struct):
    n_ctx: _Tokens | None = None


class _Props(msgspec.Struct):
    default_generation_settings: _ListedSettings = msgspec.field(default_factory=_ListedSettings)


class _ShownModel(msgspec.Struct):
    parameters: str = ""
    model_info: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


def windows_of_list(body: bytes) -> tuple[dict[str, int], Family | None]:
    """Return the windows by model in a response of `GET /v1/models`, and the server's family. Raises MsgspecError."""
    windows = {}
    family: Family | None = None
    for row in msgspec.json.decode(body, type=_List).data:
        name = _value(row.get("id"))
        family = family or _FAMILIES.get(_value(row.get("owned_by")))
        if isinstance(name, str) and (tokens := _window(row)) is not None:
            windows[name] = tokens
    return windows, family


def window_of_props(body: bytes) -> int | None:
    """Return the window of llama.cpp's `GET /props`: that of one slot, which a request gets. Raises MsgspecError."""
    return msgspec.json.decode(body, type=_Props).default_generation_settings.n_ctx


def window_of_show(body: bytes) -> int | None:
    """Return the window of Ollama's `POST /api/show`: the set one, else the model's. Raises MsgspecError."""
    shown = msgspec.json.decode(body, type=_ShownModel)
    if (set_to := _NUM_CTX.search(shown.parameters)) is not None:
        return int(set_to[1])
    lengths = (_tokens(value) for name, value in shown.model_info.items() if name.endswith(".context_length"))
    return next((tokens for tokens in lengths if tokens is not None), None)


def _window(row: dict[str, msgspec.Raw]) -> int | None:
    stated = [tokens for name in _FIELDS if (tokens := _tokens(row.get(name))) is not None]
    for name in _INSIDE:
        inner = _value(row.get(name))
        if isinstance(inner, dict):
            stated += [inner[field] for field in _FIELDS if _is_window(inner.get(field))]
    return min(stated, default=None)


def _tokens(raw: msgspec.Raw | None) -> int | None:
    value = _value(raw)
    return value if isinstance(value, int) and _is_window(value) else None


def _is_window(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 256 <= value <= 100_000_000


def _value(raw: msgspec.Raw | None) -> object:
    return None if raw is None else msgspec.json.decode(raw)
