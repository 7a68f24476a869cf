"""Writes docs/reference from the code: `make reference`."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from proxy import errors
from proxy.admin import why
from proxy.admin.endpoints import API, ENDPOINTS
from proxy.app import App
from proxy.cli.main import app as command_line
from proxy.config.loading import json_schema, load, preset_names
from proxy.telemetry.log import open_log

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/reference"
_WRITTEN = "<!-- Written by `make reference`. -->"
Json = Mapping[str, Any]


def pages() -> dict[str, str]:
    """Return the text of every generated page by its file name."""
    return {
        "settings.md": settings(),
        "commands.md": commands(),
        "reasons.md": reasons(),
        "errors.md": error_codes(),
        "metrics.md": metrics(),
        "admin-api.md": admin_api(),
    }


def table(*rows: Sequence[str]) -> str:
    """Return a Markdown table. rows: the heads first."""
    heads, *cells = rows
    lines = [heads, ["---"] * len(heads), *cells]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in row) + " |" for row in lines
    )


def settings() -> str:
    """Return the page of all settings: one section a group, with type, default and meaning."""
    schema = json_schema()
    sections = [
        "# Settings",
        _WRITTEN,
        "All settings of `config.yaml`. `concertina check` validates a file and names the line of every problem."
        " Durations are seconds or text such as `250ms`, `10s`, `2m`, `1h`, `7d`. Tokens are a number, or text such as"
        " `32k` and `1M`. Text in the file may use `${NAME}` for an environment variable.",
        *_groups(schema, schema, ""),
        "## Presets",
        "A policy begins with `extends: PRESET`. Only these values differ between presets.",
        _presets(),
    ]
    return "\n\n".join(sections) + "\n"


def _groups(root: Json, group: Json, path: str) -> Iterator[str]:
    """Yield the sections of a group and of the groups below it."""
    properties: Json = group.get("properties", {})
    leaves = [(name, each) for name, each in properties.items() if not _group_of(root, each)]
    if leaves:
        if path:
            yield f"## {path.removesuffix('.')}"
            if group.get("description"):
                yield str(group["description"])
        required = group.get("required", ())
        rows = [(f"`{name}`", _default(each, name in required), each.get("description", "")) for name, each in leaves]
        yield table(("setting", "default", "meaning"), *rows)
    for name, each in properties.items():
        if (below := _group_of(root, each)) is not None:
            inner, suffix = below
            yield from _groups(root, inner, f"{path}{name}{suffix}.")


def _group_of(root: Json, schema: Json) -> tuple[Json, str] | None:
    """Return the group that a setting holds, and what its path has after its name; None for a plain value."""
    for inner, suffix in ((schema, ""), (schema.get("additionalProperties"), ".NAME"), (schema.get("items"), "[]")):
        for each in (inner, *inner.get("anyOf", ())) if isinstance(inner, dict) else ():
            group = root["$defs"][each["$ref"].rpartition("/")[2]] if "$ref" in each else each
            if "properties" in group:
                return group, suffix
    return None


def _default(schema: Json, is_required: bool) -> str:
    if is_required:
        return "required"
    value = schema.get("default")
    return "unset" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


def _presets() -> str:
    policies = load(None, {}).policies
    names = preset_names()
    values = {name: _flat(policies[name].model_dump(mode="json")) for name in names}
    differing = [key for key in values[names[0]] if len({str(values[name][key]) for name in names}) > 1]
    rows = [(f"`{key}`", *(json.dumps(values[name][key]) for name in names)) for key in differing]
    return table(("setting", *(f"`{name}`" for name in names)), *rows)


def _flat(values: Json, path: str = "") -> dict[str, object]:
    """Return nested settings by their dotted paths."""
    flat: dict[str, object] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return flat


def commands() -> str:
    """Return the page of all commands and their options."""
    # Cyclopts puts the arguments of the running process into the usage lines.
    with patch.object(sys, "argv", ["concertina"]):
        text = command_line.generate_docs(output_format="markdown").partition("**Commands**:")[2]
    about = "Every command prints its help with `--help`."
    return f"# Command line\n\n{_WRITTEN}\n{about}\n\n{text.strip()}\n"


def reasons() -> str:
    """Return the page of reasons, ends, overflows and causes."""
    return (
        "\n\n".join(
            [
                "# Reasons",
                _WRITTEN,
                "## Reasons of a request",
                "The response header `x-compaction-reason` and the log field `reason` hold one of these.",
                _sentences(why.REASONS),
                "## How a request ended",
                "The log field `end`.",
                _sentences(why.ENDS),
                "## Overflows",
                "The log field `overflow`.",
                _sentences(why.OVERFLOWS),
                "## Causes of upstream failures",
                "The log field `cause`.",
                _sentences(why.CAUSES),
            ]
        )
        + "\n"
    )


def _sentences(words: Mapping[str, str]) -> str:
    return table(("value", "meaning"), *((f"`{word}`", sentence) for word, sentence in words.items()))


def error_codes() -> str:
    """Return the page of the errors that the proxy itself responds with."""
    kinds = {each.code: each for each in (*_subclasses(errors.ProxyError), errors.ProxyError)}
    rows = [
        (f"`{code}`", str(kind.status), "yes" if kind.retryable else "no", _first_sentence(kind))
        for code, kind in sorted(kinds.items())
    ]
    about = (
        "Errors of the proxy itself, in the shape of the request's API. `error.code` holds the code. The header"
        " `x-should-retry` says if a repetition may succeed. Errors of an upstream pass unchanged."
    )
    return "\n\n".join(["# Errors", _WRITTEN, about, table(("code", "status", "retry", "meaning"), *rows)]) + "\n"


def _subclasses(kind: type[errors.ProxyError]) -> Iterator[type[errors.ProxyError]]:
    """Yield the classes below a class, the most derived ones first, so that a base names a code that they share."""
    for each in kind.__subclasses__():
        yield from _subclasses(each)
        yield each


def _first_sentence(kind: type) -> str:
    return (kind.__doc__ or "").strip().partition("\n\n")[0]


def metrics() -> str:
    """Return the page of all metrics, as a started proxy has them."""
    rows = [
        (
            f"`{metric.name}{'_total' if metric.type == 'counter' else ''}`",
            metric.type,
            _labels(metric),
            metric.documentation,
        )
        for metric in sorted(asyncio.run(_collected()), key=lambda metric: metric.name)
        if metric.name.startswith("concertina_")
    ]
    about = (
        "`GET /metrics`, in Prometheus' text format, or in OpenMetrics' if `Accept` asks for it and one worker serves."
        " With several workers each sample has the label `worker`. No label holds a session, a key, a path or a user."
        " Above 200 models or 600 series of a metric, further label values are `other`. Metrics of the Python process"
        " begin with `process_` and `python_gc_`."
    )
    return "\n\n".join(["# Metrics", _WRITTEN, about, table(("name", "type", "labels", "meaning"), *rows)]) + "\n"


def _labels(metric: Metric) -> str:
    return ", ".join(f"`{name}`" for name in vars(metric)["_labelnames"])


async def _collected() -> list[Metric]:
    with tempfile.TemporaryDirectory() as folder:
        config = load(None, {"XDG_STATE_HOME": folder, "HOME": folder})
        config = config.model_copy(update={"store": config.store.model_copy(update={"url": "memory://"})})
        proxy = App(config, open_log("error", lambda: 0.0))
        async with proxy.open():
            assert proxy._opened is not None
            return [*proxy._opened.engine.metrics._registry.collect()]


def admin_api() -> str:
    """Return the page of the endpoints for operators."""
    rows = [
        (
            f"`{each.method}`",
            f"`{each.path}`",
            ", ".join(f"`{name}`" for name in each.query),
            ", ".join(sorted(each.roles)),
            each.summary,
        )
        for each in ENDPOINTS
    ]
    about = (
        f"Paths below `{API}`. Send the admin token or a viewer key as `Authorization: Bearer`. `GET /openapi.json` has"
        " the types of all requests and responses. Lists have at most 50 rows, or `limit` up to 200."
        " `cursor` asks for the next page and is `null` on the last one."
    )
    heads = ("method", "path", "query", "roles", "what it does")
    return "\n\n".join(["# Admin API", _WRITTEN, about, table(heads, *rows)]) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
