"""What an endpoint under /admin/api is, and the OpenAPI document that is made from their table."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib.metadata import version
from typing import NamedTuple

import msgspec
from starlette.requests import Request

from proxy.admin.access import Role, Visitor
from proxy.admin.guard import API

Does = Callable[[Request, Visitor], Awaitable[object]]
_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")
_ERROR = {"description": "What is wrong, in OpenAI's shape: `error` with `message`, `type`, `param` and `code`"}
_ANY = {"description": "any value"}
_JSON = "application/json"
_TEXT = {"type": "string"}


class Endpoint(NamedTuple):
    """What is answered at a path below /admin/api/. answer: its type; None for no content. takes: the body's type; None
    for no body."""

    method: str
    path: str
    roles: frozenset[Role]
    does: Does
    answer: type | None
    summary: str
    query: tuple[str, ...] = ()
    takes: type | None = None
    status: int = 200


def document(endpoints: Iterable[Endpoint], parameters: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """OpenAPI 3.1. parameters: schemas of those that are no free text, by their names."""
    known = [*endpoints]
    types = [told for each in known for told in (each.answer, each.takes) if told is not None]
    schemas, components = msgspec.json.schema_components(
        types, schema_hook=lambda _: dict(_ANY), ref_template="#/components/schemas/{name}"
    )
    told = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for each in known:
        path = API + _PARAMETER.sub(r"{\1}", each.path)
        operation = _operation(each, told.get(id(each.answer)), told.get(id(each.takes)))
        operation["parameters"] = [
            {**parameter, "schema": parameters.get(str(parameter["name"]), _TEXT)} for parameter in _parameters(each)
        ]
        paths.setdefault(path, {})[each.method.lower()] = operation
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
    kind = "text/event-stream" if each.answer is str else _JSON
    answer: dict[str, object] = {"description": each.summary}
    if schema is not None:
        answer["content"] = {kind: {"schema": schema}}
    body = {} if taken is None else {"requestBody": {"required": True, "content": {_JSON: {"schema": taken}}}}
    return {
        "summary": each.summary,
        "description": f"For {', '.join(sorted(each.roles))}.",
        **body,
        "security": [{"token": []}, *([{}] if "nobody" in each.roles else [])],
        "responses": {"204" if schema is None else str(each.status): answer, "default": _ERROR},
    }


def _parameters(each: Endpoint) -> list[dict[str, object]]:
    named = [{"name": name, "in": "path", "required": True} for name in _PARAMETER.findall(each.path)]
    return [*named, *({"name": name, "in": "query", "required": False} for name in each.query)]
