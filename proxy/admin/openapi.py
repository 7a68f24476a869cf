"""The OpenAPI document: the table of endpoints, with the types that stand in the signatures of their handlers."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from starlette.requests import Request

from proxy.admin.access import Visitor
from proxy.admin.endpoints import API, PARAMETER, Endpoint
from proxy.admin.guard import MOST_ROWS
from proxy.admin.overview import SPANS
from proxy.admin.totals import COLUMNS

# What returns a response by itself is annotated with what stands in it, and a request with what its body is:
# Annotated[Response, Exported], Annotated[Request, Question].
Handler = Callable[[Request, Visitor], Awaitable[Any]]

_ERROR = {"description": "What is wrong, in OpenAI's shape: `error` with `message`, `type`, `param` and `code`"}
_ANY = {"description": "any value"}
_JSON = "application/json"
_TEXT = {"type": "string"}
# Parameters that are no free text.
_PARAMETERS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "range": {"enum": [span.name for span in SPANS]},
        "sort": {"enum": [*COLUMNS]},
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST_ROWS},
        "all": {"const": "true"},
        "min_seconds": {"type": "number", "minimum": 0},
    }
)


def answer_type(handler: Handler) -> type | None:
    """What a handler answers; None for no content."""
    return _type_of_annotation(get_type_hints(handler, include_extras=True)["return"])


def body_type(handler: Handler) -> type | None:
    """What a handler takes; None for no body."""
    return _type_of_annotation(next(iter(get_type_hints(handler, include_extras=True).values())))


def document(handlers: Mapping[Endpoint, Handler]) -> dict[str, object]:
    """OpenAPI 3.1."""
    kinds = [(each, answer_type(handler), body_type(handler)) for each, handler in handlers.items()]
    types = [kind for _, *both in kinds for kind in both if kind is not None]
    schemas, components = msgspec.json.schema_components(
        types, schema_hook=lambda _: dict(_ANY), ref_template="#/components/schemas/{name}"
    )
    told = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for each, answer, body in kinds:
        path = API + PARAMETER.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, told.get(id(answer)), told.get(id(body)))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Concertina: what operators see and do", "version": version("concertina")},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(each: Endpoint, schema: object, taken: object) -> dict[str, object]:
    answer: dict[str, object] = {"description": each.summary}
    if schema is not None:
        answer["content"] = {each.media: {"schema": schema}}
    body = {} if taken is None else {"requestBody": {"required": True, "content": {_JSON: {"schema": taken}}}}
    return {
        "summary": each.summary,
        "description": f"For {', '.join(sorted(each.roles))}.",
        **body,
        "security": [{"token": []}, *([{}] if "nobody" in each.roles else [])],
        "responses": {str(each.status): answer, "default": _ERROR},
        "parameters": [*_parameters(each)],
    }


def _parameters(each: Endpoint) -> Iterator[dict[str, object]]:
    for name in PARAMETER.findall(each.path):
        yield {"name": name, "in": "path", "required": True, "schema": _PARAMETERS.get(name, _TEXT)}
    for name in each.query:
        yield {"name": name, "in": "query", "required": False, "schema": _PARAMETERS.get(name, _TEXT)}


def _type_of_annotation(hint: Any) -> type | None:
    """The type that a handler's annotation stands for; None for a plain request and for nothing."""
    kind: type = get_args(hint)[1] if get_origin(hint) is Annotated else hint
    return None if kind in (Request, type(None)) else kind
