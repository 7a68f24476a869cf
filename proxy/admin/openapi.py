"""The OpenAPI document, built from the table of endpoints and the type hints of their handlers."""

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

# A handler that returns a Response is annotated with its content, and a Request with its body: Annotated[Response,
# Exported], Annotated[Request, Question].
Handler = Callable[[Request, Visitor], Awaitable[Any]]

_ERROR = {"description": "The error in OpenAI's format: `error` with `message`, `type`, `param` and `code`"}
_ANY = {"description": "any value"}
_JSON = "application/json"
_TEXT = {"type": "string"}
# Parameters that are not free text.
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
    """Return the type of a handler's response; None for no content."""
    return _type_of_annotation(get_type_hints(handler, include_extras=True)["return"])


def body_type(handler: Handler) -> type | None:
    """Return the type of a handler's request body; None for no body."""
    return _type_of_annotation(next(iter(get_type_hints(handler, include_extras=True).values())))


def document(handlers: Mapping[Endpoint, Handler]) -> dict[str, object]:
    """Return the document in OpenAPI 3.1."""
    kinds = [(each, answer_type(handler), body_type(handler)) for each, handler in handlers.items()]
    types = [kind for _, *both in kinds for kind in both if kind is not None]
    schemas, components = msgspec.json.schema_components(
        types, schema_hook=lambda _: dict(_ANY), ref_template="#/components/schemas/{name}"
    )
    schemas_by_type = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for each, response, body in kinds:
        path = API + PARAMETER.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(
            each, schemas_by_type.get(id(response)), schemas_by_type.get(id(body))
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Concertina: the API for operators", "version": version("concertina")},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(each: Endpoint, schema: object, body_schema: object) -> dict[str, object]:
    response: dict[str, object] = {"description": each.summary}
    if schema is not None:
        response["content"] = {each.media: {"schema": schema}}
    body = (
        {} if body_schema is None else {"requestBody": {"required": True, "content": {_JSON: {"schema": body_schema}}}}
    )
    return {
        "summary": each.summary,
        "description": f"For {', '.join(sorted(each.roles))}.",
        **body,
        "security": [{"token": []}, *([{}] if "nobody" in each.roles else [])],
        "responses": {str(each.status): response, "default": _ERROR},
        "parameters": [*_parameters(each)],
    }


def _parameters(each: Endpoint) -> Iterator[dict[str, object]]:
    for name in PARAMETER.findall(each.path):
        yield {"name": name, "in": "path", "required": True, "schema": _PARAMETERS.get(name, _TEXT)}
    for name in each.query:
        yield {"name": name, "in": "query", "required": False, "schema": _PARAMETERS.get(name, _TEXT)}


def _type_of_annotation(hint: Any) -> type | None:
    """Return the type of a handler's annotation; None for a plain request and for None."""
    kind: type = get_args(hint)[1] if get_origin(hint) is Annotated else hint
    return None if kind in (Request, type(None)) else kind
