"""The newest state of an agent's plan: the items of its plan tools, and its plan as text."""

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from policies.authorship.arguments import path_of
from policies.authorship.speech import speech_of
from policies.conversation.transcript import Utterance
from policies.tool_calls.calls import Done
from policies.tool_calls.effects import Effect
from policies.tool_calls.plan_forms import PlanItem, checks_in, id_in, item_in, items_in, listed_in, made_id, status_of
from policies.tool_calls.tools import is_plan_tool
from policies.vocabulary import arguments_of_sort, words_of_sort

_ADDING, _CHANGING, _NO_PLAN = map(words_of_sort, ("plan add", "plan change", "no plan"))
_FILE = re.compile(
    r"(?:^|[/_.-])(?:plan|todo|todos|task_plan|checklist|implementation_plan)[\w-]{0,40}\.(?:md|txt)$", re.IGNORECASE
)
_APPROVED = re.compile(r"^#{1,3} Approved Plan[^\n]{0,80}\n([\s\S]{1,12000})", re.MULTILINE)
_CONTENT_KEYS = arguments_of_sort("content")
_OLD, _NEW = arguments_of_sort("old"), arguments_of_sort("new")
_MOST_TEXT = 12_000


class Plan(msgspec.Struct, frozen=True):
    """The plan of an agent.

    items: of a plan tool, in order.
    position: of the newest message that changed it.
    text, source: a plan as text, and its file or tool.
    stale: True if it was changed since in a way that cannot be parsed.
    """

    items: tuple[PlanItem, ...] = ()
    text: str = ""
    source: str = ""
    stale: bool = False
    position: int = -1

    @property
    def is_done(self) -> bool:
        """Return True if there are items, of the tool or in the text, and none is open."""
        items = self.items or checks_in(self.text)
        return bool(items) and all(item.status in ("done", "dropped") for item in items)


def update_plan_state(older: Plan, done: Sequence[Done], said: Sequence[Utterance]) -> Plan:
    """Return the plan after everything covered.

    Failed calls change nothing. A finished plan is dropped when a person makes another request.
    """
    requests = [call.position for call in said if _is_request(call)]
    plan = older
    for call in done:
        if plan.is_done and any(plan.position < request <= call.position for request in requests):
            plan = Plan()
        if call.outcome.result != "failed":
            plan = _after_call(plan, call)
    return Plan() if plan.is_done and any(request > plan.position for request in requests) else plan


def _is_request(utterance: Utterance) -> bool:
    return utterance.is_persons and speech_of(utterance.text) == "full"


def _after_call(plan: Plan, done: Done) -> Plan:
    """Return the plan after one call."""
    arguments, position = done.arguments, done.position
    progress = arguments.get("task_progress") if isinstance(arguments, dict) else None
    if isinstance(progress, str) and (items := checks_in(progress)):
        plan = replace(plan, items=tuple(items), position=position)
    names = set(done.words)
    if is_plan_tool(done.words) and not names & _NO_PLAN:
        return _after_plan_tool(plan, done, names)
    if done.kind in ("change", "shell"):
        return _after_file_change(plan, done)
    return plan


def _after_plan_tool(plan: Plan, done: Done, names: set[str]) -> Plan:
    arguments, position, result = done.arguments, done.position, done.result or ""
    if names & {"exit"} and "plan" in names:
        return _approved_plan(plan, done)
    if not isinstance(arguments, dict):
        items = items_in(arguments) if isinstance(arguments, str) else None
        return replace(plan, items=tuple(items), position=position) if items else plan
    if arguments.get("command") in ("view", "read", "list"):
        return plan
    if (listed := items_in(arguments)) is not None:
        is_part = arguments.get("merge") is True
        return replace(plan, items=_merge_items(plan.items, listed) if is_part else tuple(listed), position=position)
    if names & _ADDING and _adds(names, arguments) and (added := item_in(arguments)) is not None:
        item_id = made_id(result) or added.id or str(len(plan.items) + 1)
        return replace(plan, items=_merge_items(plan.items, [replace(added, id=item_id)]), position=position)
    if names & _CHANGING and (item_id := id_in(arguments)):
        return _plan_with_change(plan, done, item_id, names)
    if "list" in names and (stated := [*listed_in(result)]):
        return replace(plan, items=tuple(stated), position=position)
    return plan


def _adds(names: set[str], arguments: Mapping[str, object]) -> bool:
    """Return True if a call adds an item of the agent's plan, not a ticket in a tracker."""
    return bool(names & {"todo", "todos", "plan", "checklist"}) or "subject" in arguments


def _approved_plan(plan: Plan, done: Done) -> Plan:
    """Return the plan with the text that a person approved."""
    approved = _APPROVED.search(done.result or "")
    argument = done.arguments.get("plan") if isinstance(done.arguments, dict) else None
    text = approved[1] if approved else argument
    if not isinstance(text, str) or not text.strip():
        return plan
    return replace(plan, text=text.strip()[:_MOST_TEXT], source=done.call.name, stale=False, position=done.position)


def _merge_items(items: Sequence[PlanItem], newer: Sequence[PlanItem]) -> tuple[PlanItem, ...]:
    """Return the items with newer ones in place of those with the same id. Other newer ones are appended."""
    items_by_id = {item.id or f"\0{at}": item for at, item in enumerate(items)}
    for item in newer:
        items_by_id[item.id or f"\0{len(items_by_id)}"] = item
    return tuple(items_by_id.values())


def _plan_with_change(plan: Plan, done: Done, item_id: str, names: set[str]) -> Plan:
    """Return the plan with one item changed; unchanged if it has no such item."""
    arguments = done.arguments if isinstance(done.arguments, dict) else {}
    status = status_of(arguments.get("status", arguments.get("state")))
    if status is None and names & {"complete", "finish", "done", "close", "check"}:
        status = "done"
    if names & {"delete", "remove"} or arguments.get("status") == "deleted":
        return replace(plan, items=tuple(item for item in plan.items if item.id != item_id), position=done.position)
    text = next(
        (
            field_text
            for key in ("subject", "content", "title")
            if isinstance(field_text := arguments.get(key), str) and field_text
        ),
        None,
    )
    items = tuple(
        replace(item, status=status or item.status, text=" ".join((text or item.text).split()))
        if item.id == item_id
        else item
        for item in plan.items
    )
    return plan if items == plan.items else replace(plan, items=items, position=done.position)


def _after_file_change(plan: Plan, done: Done) -> Plan:
    """Return the plan after a change to a plan file."""
    path = path_of(done.arguments) if not done.commands else None
    if path is not None:
        return _after_edit(plan, done, path) if _FILE.search(path) else plan
    touched = [effect for effect in done.effects if _FILE.search(effect.path)]
    return _after_effect(plan, done, touched[-1]) if touched else plan


def _after_edit(plan: Plan, done: Done, path: str) -> Plan:
    arguments = done.arguments if isinstance(done.arguments, dict) else {}
    content = next((text for key in _CONTENT_KEYS if isinstance(text := arguments.get(key), str)), None)
    if content is not None and not any(old in arguments for old in _OLD):
        return replace(plan, text=content.strip()[:_MOST_TEXT], source=path, stale=False, position=done.position)
    if plan.source != path or not plan.text:
        return plan
    old_text = next((text for key in _OLD if isinstance(text := arguments.get(key), str) and text), None)
    new_text = next((text for key in _NEW if isinstance(text := arguments.get(key), str)), None)
    if old_text is not None and new_text is not None and old_text in plan.text:
        return replace(plan, text=plan.text.replace(old_text, new_text, 1)[:_MOST_TEXT], position=done.position)
    return replace(plan, stale=True, position=done.position)


def _after_effect(plan: Plan, done: Done, effect: Effect) -> Plan:
    if effect.deed in ("deleted", "renamed"):
        return (
            replace(plan, text="", source="", stale=False, position=done.position)
            if plan.source == effect.path
            else plan
        )
    for command in done.commands:
        targets = [command.path(target) for operator, target in command.redirects if operator == ">"]
        if command.fed and (effect.path in targets or command.program == "tee") and effect.deed == "written":
            return replace(
                plan, text=command.fed.strip()[:_MOST_TEXT], source=effect.path, stale=False, position=done.position
            )
    return replace(plan, stale=True, position=done.position) if plan.source == effect.path else plan
