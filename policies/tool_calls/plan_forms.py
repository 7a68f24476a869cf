"""Formats of agents' plans: lists of items in arguments, Markdown check lists, ids and statuses in results."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from policies.vocabulary import arguments_of_sort

Status = Literal["open", "active", "done", "dropped"]
Object = Mapping[str, object]

_TEXT_KEYS, _LIST_KEYS, _ID_KEYS = map(arguments_of_sort, ("item text", "plan", "item id"))
_STATUSES: Mapping[str, Status] = {
    **dict.fromkeys(
        ("pending", "todo", "open", "notstarted", "new", "planned", "blocked", "deferred", "待办", "未开始"), "open"
    ),
    **dict.fromkeys(("inprogress", "active", "doing", "started", "wip", "running", "current", "进行中"), "active"),
    **dict.fromkeys(
        ("completed", "complete", "done", "finished", "closed", "success", "checked", "已完成", "完成"), "done"
    ),
    **dict.fromkeys(
        ("cancelled", "canceled", "dropped", "deleted", "skipped", "removed", "abandoned", "failed"), "dropped"
    ),
}
_MARKS: Mapping[str, Status] = {
    " ": "open",
    "": "open",
    "x": "done",
    "X": "done",
    "✓": "done",
    "-": "active",
    "~": "active",
    ">": "active",
    "/": "active",
}
_CHECK = re.compile(
    r"^[ \t]{0,24}(?:[-*+]|\d{1,3}[.)])[ \t]{1,4}\[([ xX✓~>/-]?)\][ \t]{1,4}(\S[^\n]{0,1000})$", re.MULTILINE
)
_LISTED = re.compile(r"^[ \t]{0,8}#?([\w-]{1,20})[.:]? \[(\w[\w -]{0,20})\] (\S[^\n]{0,1000})$", re.MULTILINE)
_MADE = re.compile(r"(?:#|\bid\b\W{0,6}|\btask |\btodo )([\w-]{0,40}\d[\w-]{0,40})", re.IGNORECASE)
_SUFFIX = re.compile(r" (?:\[blocked by [^\]\n]{1,200}\]|\(owner: [^)\n]{1,80}\)|\([\w-]{1,40}\))$")
_MOST_ITEMS = 200


class PlanItem(msgspec.Struct, frozen=True):
    """An item of a plan, word for word. id: its id in the agent's tool."""

    text: str
    status: Status = "open"
    id: str = ""


def items_in(arguments: object) -> list[PlanItem] | None:
    """Return the items of a whole plan in a call's arguments; None if there is no plan."""
    if isinstance(arguments, list):
        return _items(arguments)
    if not isinstance(arguments, dict):
        return checks_in(arguments) or None if isinstance(arguments, str) else None
    for key in _LIST_KEYS:
        value = arguments.get(key)
        if isinstance(value, str) and value.lstrip().startswith("["):
            value = _decode_list(value)
        if isinstance(value, list) and (items := _items(value)) is not None:
            return items
        if isinstance(value, str) and (checks := checks_in(value)):
            return checks
    content = arguments.get("content")
    return checks_in(content) or None if isinstance(content, str) else None


def _decode_list(text: str) -> object:
    """Return a list that a model wrote as JSON text; the text if it is no JSON."""
    try:
        return msgspec.json.decode(text[:100_000])
    except (msgspec.DecodeError, UnicodeError):
        return text


def _items(values: Sequence[object]) -> list[PlanItem] | None:
    items = [item for value in values[:_MOST_ITEMS] if (item := item_in(value)) is not None]
    return items if len(items) == len(values[:_MOST_ITEMS]) else None


def item_in(value: object) -> PlanItem | None:
    """Return the plan item in a value; None if there is none."""
    if isinstance(value, str):
        return PlanItem(_line(value)) if value.strip() else None
    if not isinstance(value, dict):
        return None
    text = next((field for key in _TEXT_KEYS if isinstance(field := value.get(key), str) and field.strip()), None)
    status = status_of(value.get("status", value.get("state", value.get("completed", value.get("done")))))
    return None if text is None else PlanItem(_line(text), status or "open", id_in(value))


def id_in(value: Object) -> str:
    """Return the id of an item; empty if it has none."""
    return next((str(item_id) for key in _ID_KEYS if isinstance(item_id := value.get(key), str | int)), "")


def status_of(value: object) -> Status | None:
    """Return the status that a value names; None if it is unknown."""
    if isinstance(value, bool):
        return "done" if value else "open"
    return _STATUSES.get(re.sub(r"[\W_]", "", value.lower())) if isinstance(value, str) else None


def checks_in(text: str) -> list[PlanItem]:
    """Return the items of a Markdown check list."""
    if "[" not in text:
        return []
    return [PlanItem(_line(match[2]), _MARKS.get(match[1], "open")) for match in _CHECK.finditer(text[:100_000])][
        :_MOST_ITEMS
    ]


def listed_in(result: str) -> Iterator[PlanItem]:
    """Yield the items that a tool lists in its result: `#1 [completed] text`."""
    for match in _LISTED.finditer(result[:100_000]):
        if (status := status_of(match[2])) is not None:
            yield PlanItem(_line(_SUFFIX.sub("", match[3])), status, match[1])


def made_id(result: str) -> str:
    """Return the id that a tool assigned to a new item; empty if the result has none."""
    match = _MADE.search(result[:400])
    return match[1] if match else ""


def _line(text: str) -> str:
    return " ".join(text.split())
