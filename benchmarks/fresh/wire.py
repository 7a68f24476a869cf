"""The wire shape of each client: events become the messages that it would send."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fresh.sessions import Event, Kind

Message = dict[str, Any]

_SYSTEM = "You are a careful coding agent. Answer in the language of the user. Use the tools; keep answers short."
_REMINDER = (
    "<system-reminder>\nAs you answer the user's questions, you can use the following context:\n"
    "# currentDate\nToday's date is 2026-11-28.\n</system-reminder>"
)
# Clients whose results tell an exit code.
TELLS_EXIT_CODE = frozenset({"codex", "openhands", "mini-swe"})
_TOOLS = {
    "claude": {"run": "Bash", "read": "Read", "edit": "Edit", "write": "Write", "plan": "TodoWrite"},
    "cursor": {
        "run": "run_terminal_cmd",
        "read": "read_file",
        "edit": "search_replace",
        "write": "write",
        "plan": "todo_write",
    },
    "opencode": {"run": "bash", "read": "read", "edit": "edit", "write": "write", "plan": "todowrite"},
    "openhands": {
        "run": "terminal",
        "read": "terminal",
        "edit": "file_editor",
        "write": "file_editor",
        "plan": "task_tracker",
    },
    "ops": {"run": "shell", "read": "read_file", "edit": "edit_file", "write": "write_file", "plan": "todo"},
    "mini-swe": {"run": "bash"},
}


@dataclass
class Play:
    """A session on the wire.

    messages: the whole history. ends: how many of them each request holds. at: the index of each event's first message.
    """

    path: str
    messages: list[Message] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)

    def body(self, model: str, end: int) -> Message:
        """Return the request that holds the first `end` messages."""
        history = self.messages[:end]
        if self.path.endswith("messages"):
            return {"model": model, "max_tokens": 500, "system": _SYSTEM, "messages": history}
        if self.path.endswith("responses"):
            return {"model": model, "instructions": _SYSTEM, "input": history, "store": False}
        return {"model": model, "messages": history}


def play(kind: Kind, events: list[Event]) -> Play:
    """Return the messages of a session in the shape of its client."""
    client = kind.client
    if client == "claude":
        return _messages(events)
    if client == "codex":
        return _responses(events)
    return _chat(client, events)


def exit_code(event: Event) -> int:
    """Return the exit code of a call, for clients that always tell one."""
    return event.exit_code if event.exit_code is not None else int(event.outcome == "failed")


def typed(event: Event) -> str:
    return f"{event.text}\n\n{event.pasted}" if event.pasted else event.text


def _messages(events: list[Event]) -> Play:
    done = Play("/v1/messages")
    messages = done.messages
    for number, event in enumerate(events):
        if event.who in ("assistant", "call"):
            done.ends.append(len(messages))
        is_behind_result = bool(messages) and messages[-1]["role"] == "user"
        done.at.append(len(messages) - (event.who in ("person", "report") and is_behind_result))
        if event.who == "call":
            name, arguments = _tool("claude", event)
            use = {"type": "tool_use", "id": f"toolu_{number:06}", "name": name, "input": arguments}
            failed = event.outcome == "failed"
            text = f"Exit code {exit_code(event)}\n{event.result}" if failed and event.tool == "run" else event.result
            if failed and event.tool != "run":
                text = f"<tool_use_error>{event.result}</tool_use_error>"
            result: Message = {"type": "tool_result", "tool_use_id": use["id"], "content": text, "is_error": failed}
            messages.append({"role": "assistant", "content": [use]})
            messages.append({"role": "user", "content": [result]})
            if number % 11 == 5:
                said = "hook additional context: staging port 6510, all checks are green"
                hook = f"<system-reminder>\nPostToolUse:{name} {said}\n</system-reminder>"
                messages[-1]["content"].append({"type": "text", "text": hook})
        elif event.who == "assistant":
            messages.append({"role": "assistant", "content": [{"type": "text", "text": event.text}]})
        else:
            blocks = [{"type": "text", "text": typed(event)}]
            if event.who == "report":
                text = (
                    f"<task-notification>\n<task-id>a{number}</task-id>\n<status>completed</status>\n"
                    f"<result>{event.text}</result>\n</task-notification>"
                )
                blocks = [{"type": "text", "text": text}]
            if number == 0:
                blocks.insert(0, {"type": "text", "text": _REMINDER})
            if is_behind_result:
                messages[-1]["content"].extend(blocks)
            else:
                messages.append({"role": "user", "content": blocks})
    return done


def _responses(events: list[Event]) -> Play:
    done = Play("/v1/responses")
    items = done.messages
    items.append(
        _item("user", "<environment_context>\n  <cwd>/srv/app</cwd>\n  <shell>bash</shell>\n</environment_context>")
    )
    for number, event in enumerate(events):
        if event.who in ("assistant", "call"):
            done.ends.append(len(items))
        done.at.append(len(items))
        if event.who == "call":
            items.extend(_codex_call(number, event))
        elif event.who == "assistant":
            items.append(
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": event.text}]}
            )
        elif event.who == "report":
            told = {"agent_id": f"a{number}", "status": {"completed": event.text}}
            items.append(
                _item(
                    "user",
                    f"<subagent_notification>\n{json.dumps(told, ensure_ascii=False)}\n</subagent_notification>",
                )
            )
        else:
            items.append(_item("user", typed(event)))
    return done


def _item(role: str, text: str) -> Message:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _codex_call(number: int, event: Event) -> list[Message]:
    arguments, call_id = event.arguments, f"call_{number:06}"
    if event.tool in ("edit", "write"):
        is_new = event.tool == "write"
        path = arguments["path"]
        lines = "\n".join("+" + line for line in arguments.get("content", "").splitlines())
        hunk = lines if is_new else f"@@\n-    {arguments['old']}\n+    {arguments['new']}"
        patch = f"*** Begin Patch\n*** {'Add' if is_new else 'Update'} File: {path}\n{hunk}\n*** End Patch"
        letter = "A" if is_new else "M"
        output = (
            f"Exit code: 0\nWall time: 0.1 seconds\nOutput:\nSuccess. Updated the following files:\n{letter} {path}\n"
        )
        if event.outcome == "failed":
            output = (
                f"apply_patch verification failed: Failed to find expected lines in {path}:\n    {arguments['old']}"
            )
        return [
            {
                "type": "custom_tool_call",
                "status": "completed",
                "call_id": call_id,
                "name": "apply_patch",
                "input": patch,
            },
            {"type": "custom_tool_call_output", "call_id": call_id, "output": output},
        ]
    command = arguments["command"] if event.tool == "run" else f"cat {arguments.get('path', 'TODO')}"
    output = (
        f"Chunk ID: {number:06x}\nWall time: 0.0413 seconds\nProcess exited with code {exit_code(event)}\n"
        f"Original token count: {len(event.result) // 4}\nOutput:\n{event.result}\n"
    )
    if event.tool == "run" and number % 3 == 0:
        script = f"const r = await tools.exec_command({{cmd: {json.dumps(command)}}});\ntext(r);\n"
        told = json.dumps(
            {
                "chunk_id": f"{number:06x}",
                "wall_time_seconds": 0.04,
                "exit_code": exit_code(event),
                "output": event.result,
            },
            ensure_ascii=False,
        )
        return [
            {"type": "custom_tool_call", "status": "completed", "call_id": call_id, "name": "exec", "input": script},
            {
                "type": "custom_tool_call_output",
                "call_id": call_id,
                "output": f"Script completed\nWall time 0.1 seconds\nOutput:\n{told}",
            },
        ]
    return [
        {
            "type": "function_call",
            "status": "completed",
            "name": "exec_command",
            "arguments": json.dumps({"cmd": command}),
            "call_id": call_id,
        },
        {"type": "function_call_output", "call_id": call_id, "output": output},
    ]


def _chat(client: str, events: list[Event]) -> Play:
    done = Play("/v1/chat/completions", [{"role": "system", "content": _SYSTEM}])
    messages = done.messages
    for number, event in enumerate(events):
        if event.who in ("assistant", "call"):
            done.ends.append(len(messages))
        done.at.append(len(messages))
        if event.who == "call":
            messages.extend(_chat_call(client, number, event))
        elif event.who == "assistant":
            messages.append({"role": "assistant", "content": event.text})
        elif event.who == "report":
            messages.append(
                {
                    "role": "user",
                    "content": f"<system-reminder>\nBackground agent finished. {event.text}\n</system-reminder>",
                }
            )
        else:
            messages.append({"role": "user", "content": _asked(client, number, event)})
    return done


def _asked(client: str, number: int, event: Event) -> str:
    text = typed(event)
    if client == "cursor":
        files = (
            '<attached_files>\n<code_selection path="src/carts/audit_cart.py" lines="1-4">\n'
            "     1|import logging\n     4|log = None\n</code_selection>\n</attached_files>\n"
        )
        return (files if number % 3 == 0 else "") + f"<user_query>\n{text}\n</user_query>"
    if client == "swe-agent" and number == 0:
        return (
            f"We're currently solving the following issue within our repository. Here's the issue text:\nISSUE:\n{text}"
        )
    return text


def _chat_call(client: str, number: int, event: Event) -> list[Message]:
    if client == "aider":
        arguments = event.arguments
        search, replace = f"    {arguments['old']}", f"    {arguments['new']}"
        lines = f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE"
        block = f"{arguments['path']}\n```python\n{lines}\n```"
        return [{"role": "assistant", "content": block}]
    if client == "swe-agent":
        call = f"THOUGHT: Let me go on with this step.\n\n```\n{_shell(event)}\n```"
        return [
            {"role": "assistant", "content": call},
            {
                "role": "user",
                "content": f"Observation: {event.result}\n(Open file: n/a)\n(Current directory: /srv/app)\nbash-$",
            },
        ]
    name, arguments = _tool(client, event)
    call_id = f"call_{number:06}"
    result = event.result
    if client == "openhands":
        result += (
            f"\n[The command completed with exit code {exit_code(event)}.]\n[Current working directory: /srv/app]"
            if name == "terminal"
            else ""
        )
    elif client == "mini-swe":
        result = json.dumps({"returncode": exit_code(event), "output": result}, ensure_ascii=False, indent=2)
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"id": call_id, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call_id, "content": result},
    ]


def _shell(event: Event) -> str:
    arguments = event.arguments
    if event.tool == "run":
        return str(arguments["command"])
    if event.tool == "edit":
        return f"sed -i 's/{arguments['old']}/{arguments['new']}/' {arguments['path']}" + (
            "" if event.outcome != "failed" else " --bad"
        )
    if event.tool == "write":
        return f"cat > {arguments['path']} <<'EOF'\n{arguments['content']}\nEOF"
    return f"cat {arguments.get('path', 'TODO')}"


def _tool(client: str, event: Event) -> tuple[str, Message]:
    """Return the name and the arguments of a call as the client's tool has them."""
    if client == "mini-swe":
        return "bash", {"command": _shell(event)}
    arguments = event.arguments
    name = _TOOLS[client][event.tool]
    if event.tool in ("run", "plan"):
        return name, arguments
    if client == "openhands":
        if event.tool == "read":
            return name, {"command": f"cat {arguments['path']}"}
        if event.tool == "edit":
            return name, {
                "command": "str_replace",
                "path": arguments["path"],
                "old_str": arguments["old"],
                "new_str": arguments["new"],
            }
        return name, {"command": "create", "path": arguments["path"], "file_text": arguments["content"]}
    key = {
        "claude": "file_path",
        "opencode": "filePath",
        "cursor": "target_file" if event.tool == "read" else "file_path",
    }.get(client, "path")
    old, new = ("oldString", "newString") if client == "opencode" else ("old_string", "new_string")
    rest = {"old": old, "new": new}
    return name, {key if field == "path" else rest.get(field, field): value for field, value in arguments.items()}
