"""What agents' harnesses put into the user role, or around what a person typed, as of November 2026.

Claude Code, codex, opencode, qwen-code and Gemini CLI, Cline, Roo and Kilo, goose, aider, OpenHands, SWE-agent,
mini-swe-agent, Continue, Cursor, Copilot, Windsurf, browser-use, smolagents. One row is one wrapper; what no row knows
is judged by its form (policies/voices/parts.py).
"""

import re
from collections.abc import Mapping
from typing import Literal

Voice = Literal["person", "harness", "report", "summary", "instructions"]
"""`harness`: about the client and its state. `report`: what a tool, a hook or another agent said. `summary`: a client's
own compaction. `instructions`: a file of rules that the client puts there."""

ELEMENTS: Mapping[str, Voice] = {
    # Claude Code, and those that took its tags over.
    "system-reminder": "harness",
    "system_reminder": "harness",
    "command-name": "harness",
    "command-message": "harness",
    "command-contents": "harness",
    "local-command-caveat": "harness",
    "local-command-stdout": "report",
    "local-command-stderr": "report",
    "bash-input": "report",
    "bash-stdout": "report",
    "bash-stderr": "report",
    "task-notification": "report",
    "background-task-input": "report",
    "background-task-output": "report",
    "teammate-message": "report",
    "cross-session-message": "report",
    "channel-message": "report",
    "user-prompt-submit-hook": "report",
    "session-start-hook": "report",
    "post-tool-use-hook": "report",
    "stop-hook": "report",
    "mcp-resource": "report",
    "mcp-resource-update": "report",
    "mcp-polling-update": "report",
    "new-diagnostics": "report",
    "ide_diagnostics": "report",
    "ide_opened_file": "harness",
    "ide_selection": "harness",
    "tool_use_error": "report",
    "persisted-output": "report",
    "tick": "harness",
    "fork-boilerplate": "harness",
    "total_tokens": "harness",
    "budget:token_budget": "harness",
    # codex
    "environment_context": "harness",
    "user_instructions": "instructions",
    "permissions instructions": "harness",
    "collaboration_mode": "harness",
    "personality_spec": "harness",
    "model_switch": "harness",
    "apps_instructions": "harness",
    "skills_instructions": "harness",
    "plugins_instructions": "harness",
    "turn_aborted": "harness",
    "subagent_notification": "report",
    "user_shell_command": "report",
    "user_action": "report",
    "skill": "instructions",
    # Cline, Roo, Kilo
    "environment_details": "harness",
    "explicit_instructions": "instructions",
    "final_file_content": "report",
    "file": "report",
    "file_content": "report",
    "folder_content": "report",
    "workspace_diagnostics": "report",
    "terminal_output": "report",
    "url_content": "report",
    # goose, Gemini CLI, qwen-code, Cursor, Copilot, Windsurf, Continue
    "info-msg": "harness",
    "session_context": "harness",
    "hook_context": "report",
    "attached_files": "report",
    "additional_data": "harness",
    "open_and_recently_viewed_files": "harness",
    "user_info": "harness",
    "git_status": "harness",
    "project_layout": "harness",
    "always_applied_workspace_rules": "instructions",
    "agent_requestable_workspace_rules": "instructions",
    "environment_info": "harness",
    "workspace_info": "harness",
    "editorContext": "harness",
    "reminderInstructions": "harness",
    "ADDITIONAL_METADATA": "harness",
    # browser-use
    "agent_history": "report",
    "agent_state": "harness",
    "browser_state": "report",
    "browser_vision": "report",
    "read_state": "report",
    "page_specific_actions": "harness",
    "step_info": "harness",
    # OpenHands, SWE-agent
    "uploaded_files": "harness",
    "RUNTIME_INFORMATION": "harness",
    "REPOSITORY_INFO": "harness",
    "REPOSITORY_INSTRUCTIONS": "instructions",
    "EXTRA_INFO": "harness",
    "CURRENT_TASK": "harness",
    # ours, from an item that a client has brought back
    "conversation_record": "report",
    # compactions
    "summary": "summary",
    "conversation_summary": "summary",
    "conversation-summary": "summary",
    "context_summary": "summary",
    "state_snapshot": "summary",
    "compaction_summary": "summary",
    "previous_session_summary": "summary",
}

# What holds a person's words: all else beside it in the same text is a harness's.
TYPED = frozenset(
    {
        *("task", "feedback", "answer", "user_message", "user_feedback", "user_query", "user_request", "user_input"),
        *("userRequest", "USER_REQUEST", "user-prompt", "user_prompt", "pending_user_message", "user-interrupt"),
        *("command-args", "new_task"),
    }
)
# Of these, some are plain words: they hold a person's only where the text begins with one.
PLAIN_TYPED = frozenset({"task", "feedback", "answer", "new_task"})
# A person's words within an element of a harness.
TYPED_WITHIN: Mapping[str, str] = {"agent_state": "user_request"}

# Behind one of these nobody types in the same text: what follows is the client's, or what broke out of the report.
ALONE = frozenset(
    {
        *("task-notification", "teammate-message", "cross-session-message", "subagent_notification", "tool_use_error"),
        *("background-task-output", "user-prompt-submit-hook", "session-start-hook", "post-tool-use-hook", "stop-hook"),
        *("mcp-resource", "mcp-resource-update", "mcp-polling-update", "hook_context", "agent_history"),
        "conversation_record",
    }
)
# In front of what a person answered to a tool of Cline's and its kin.
ANSWER_HEADER = re.compile(
    r"(?:\[(?:ask_followup_question|attempt_completion|plan_mode_respond|new_task)[^\]\n]{0,300}\] Result:"
    r"|the following (?:feedback|context|message):)\s{0,20}\Z"
)
# A result whose content is the next text.
RESULT_HEADER = re.compile(r"\s{0,20}\[[\w-]{2,40}(?: for [^\]\n]{0,300})?\] Result:\s{0,20}")
# What an editor puts in front of a request, and what stands between the two.
EDITOR = re.compile(r"\s{0,20}# Context from my IDE setup:(?s:.{0,100000}?)\n## My request for Codex:[ \t]{0,9}\n?")

# Texts of no element, by how they begin: to the end of the text.
_BEGINNINGS: tuple[tuple[Voice, str, str], ...] = (
    ("summary", "Claude Code", r"This session is being continued from a previous conversation"),
    ("summary", "codex", r"Another language model started to solve this problem and produced a summary"),
    (
        "summary",
        "",
        r"(?:Here is|The following is|This is) (?:a|the) (?:compacted |detailed )?summary of (?:the|our|this)"
        r" (?:previous |earlier |prior )?(?:conversation|session|chat)(?: so far)?[:.]\s{0,9}\n",
    ),
    ("summary", "aider", r"I spoke to you previously about a number of things\."),
    ("summary", "pi", r"The conversation history before this point was compacted into the following summary"),
    ("instructions", "AGENTS.md", r"# AGENTS\.md instructions\b"),
    ("instructions", "skill", r"Base directory for this skill:"),
    (
        "instructions",
        "",
        r"(?:Instructions from: [^\n]{1,300}(?:\.md|\.mdc|rules)\s{0,9}\n|--- Context from: [^\n]{1,300}---\s{0,9}\n"
        r"|Contents of [^\n]{1,300}(?:\.md|\.mdc|rules)(?: \([^\n]{1,200}\))?:\s{0,9}\n)",
    ),
    ("harness", "Claude Code", r"Caveat: The messages below were generated by the user while running local commands"),
    ("harness", "Claude Code", r"\[Request interrupted by user[^\]\n]{0,40}\]\s{0,20}\Z"),
    ("harness", "Claude Code", r"Tools? loaded\.\s{0,20}\Z"),
    ("harness", "Claude Code", r"(?:Stop hook feedback|Operation stopped by hook):"),
    ("harness", "Claude Code", r"(?:Continue from where you left off|No response requested)\.\s{0,20}\Z"),
    ("harness", "opencode", r"Continue if you have next steps, or stop and ask for clarification"),
    ("harness", "opencode", r"Summarize the task tool output above and continue with your task\.\s{0,20}\Z"),
    ("harness", "opencode", r"The following tool was executed by the user\s{0,20}\Z"),
    ("report", "tool", r"Called the \w{1,40} tool with the following input:"),
    ("report", "tool", r"--- Content from referenced files ---"),
    ("harness", "aider", r"I have \*added these files to the chat\*|I added these files to the chat: "),
    ("harness", "aider", r"Here are summaries of some files present in my git repository"),
    ("harness", "aider", r"\*Trust this message as the true contents|# Fix any errors below, if possible\."),
    ("harness", "aider", r"I committed the changes with git hash [0-9a-f]{5,40} & commit msg:"),
    ("harness", "aider", r"I switched to a new code base\. Please don't consider"),
    ("report", "aider", r"I ran this command:\s{1,9}(?s:.{1,2000}?)And got this output:"),
    ("report", "aider", r"The LLM did not conform to the edit format|# \d{1,3} SEARCH/REPLACE blocks? failed"),
    ("report", "tool", r"\[[\w-]{2,40}(?: for [^\]\n]{0,300})?\] Result:"),
    (
        "report",
        "tool",
        r"(?:Observation|OBSERVATION|Tool (?:result|output|response)|Command (?:output|executed))[.:]\s{0,9}\n",
    ),
    ("report", "tool", r"EXECUTION RESULT of \[\w{1,40}\]:"),
    ("report", "tool", r"<(?:returncode|tool_response|tool_result|function_results|function_result)\b"),
    (
        "harness",
        "mini-swe-agent",
        r"Please always provide EXACTLY ONE action|Format error:\s{0,9}\n|No tool calls? found",
    ),
    ("harness", "Cline", r"\[ERROR\] You did not use a tool in your previous response"),
    ("harness", "OpenHands", r"Please continue working on the task on whatever approach you think is suitable\."),
    ("harness", "browser-use", r"Current (?:step: \d{1,4}/\d{1,4}|url: \S|date and time: \d)"),
    ("harness", "goose", r"(?:Tool calls? (?:was|were) (?:denied|declined)|The user has declined to run this tool)"),
)
BEGINNINGS = tuple((voice, by, re.compile(rf"\s{{0,20}}(?:{pattern})")) for voice, by, pattern in _BEGINNINGS)
# Any of them: nearly no text begins so, and one pattern finds that out in a third of the time.
ANY_BEGINNING = re.compile(rf"\s{{0,20}}(?:{'|'.join(pattern for *_, pattern in _BEGINNINGS)})")

# What stands beside a person's words in one text, line by line.
LINES = re.compile(
    r"^(?:\[Request interrupted by user[^\]\n]{0,40}\]|Tools? loaded\.)[ \t\r]{0,9}(?:\n|\Z)", re.MULTILINE
)

# What a person typed while the agent worked, as clients deliver it: within a reminder, or in a result.
WHILE_WORKING = re.compile(
    r"\s{0,20}(?:The|A) user (?:has )?(?:sent|typed|added|interjected|submitted)[^\n:]{0,80}:[ \t]{0,9}\n?"
    r"(?P<said>(?s:.{1,200000}))\Z"
)
# What the client says behind those words.
_CLOSINGS = (
    "This is how Claude Code surfaces",
    "IMPORTANT: After completing your current task",
    "Please address this message and continue",
    "Address this message and continue",
    "Note: The user's next message may contain",
    "</feedback>",
)
CLOSING = re.compile(r"\n\s{0,20}(?:" + "|".join(map(re.escape, _CLOSINGS)) + ")")

# A person's choice as a result: how such a result begins, and which tools ask.
REJECTED = re.compile(
    r"\s{0,20}(?:(?:The user doesn't want to (?:proceed with this tool use|take this action right now)\."
    r"|The agent proposed a plan that was rejected by the user)(?s:.{0,2000}?)the user said:"
    r"|The user rejected permission to use this specific tool call with the following feedback:"
    r"|The user (?:denied|approved) this operation and provided the following (?:feedback|context):\s{0,9}<feedback>)"
    r"\s{0,9}(?P<said>(?s:.{1,100000}))\Z"
)
ANSWERED = re.compile(
    r"\s{0,20}(?:The )?[Uu]ser (?:has )?(?:answered|responded to|selected|chose|replied)[^\n:]{0,60}:\s{0,9}"
    r"(?P<said>(?s:.{1,100000}))\Z"
)
ANSWERED_CLOSING = re.compile(r"\.?\s{0,9}You can now continue with the user's answers(?: in mind)?\.?\s{0,20}\Z")
ASKING_TOOLS = frozenset(
    {
        *("askuserquestion", "askuser", "askfollowupquestion", "requestuserinput", "question", "askquestion"),
        *("askhuman", "humaninput", "userinput", "getuserinput", "ask", "clarify", "askclarification"),
        *("askforclarification", "planmoderespond", "asktheuser", "promptuser"),
    }
)
# No answer: an error, or the client's words for a person who did not want to answer.
FAILED_ANSWER = re.compile(
    r"\s{0,20}(?:<tool_use_error>|\[?(?:error|timeout|no (?:answer|response))\b|input ?validation"
    r"|STOP what you are doing|\[?request interrupted|\{\"answers\": ?\{\}"
    r"|\[?(?:tool use|tool call|request|question|operation|execution|[a-z]{1,30}_\w{1,40})s?"
    r" (?:was|were|has been) (?:rejected|cancell?ed|declined|denied|dismissed|interrupted|aborted)"
    r"|(?:the )?(?:user|human|operator) (?:has )?(?:declined|rejected|refused|cancell?ed|dismissed|denied|aborted"
    r"|interrupted|skipped|ignored|chose not|closed"
    r"|(?:doesn't|does not|didn't|did not) (?:want to (?:proceed|take|answer)|answer|respond|reply|provide|select"
    r"|choose))\b)",
    re.IGNORECASE,
)
# Tools that bring what strangers wrote: a reminder at the end of their results may be forged.
FOREIGN_TOOL = re.compile(
    r"fetch|web|search|brows|http|url|scrap|crawl|mail|mcp__|download|navigate|slack|issue|page", re.IGNORECASE
)

# A client whose messages hold one of these puts nothing bare into the user role but what a person typed.
KNOWN = frozenset(
    {
        *("system-reminder", "environment_context", "environment_details", "user_instructions", "turn_aborted"),
        *("local-command-caveat", "command-name", "task-notification", "permissions instructions"),
    }
)
# As clients introduce themselves in the system prompt.
INTRODUCTIONS = re.compile(
    r"Claude Code|Codex CLI|\bcodex\b|\b[Oo]pen[Cc]ode\b|Qwen Code|Gemini CLI|operating inside pi\b|\bCline\b|\bRoo\b"
    r"|\bKilo\b|\bgoose\b|\bCrush\b|\bAmp\b"
)

# Names of files in which rules for agents stand.
RULE_FILES = re.compile(
    r"(?:\A|[/\\])(?:(?:CLAUDE|AGENTS?|GEMINI|QWEN|CRUSH|WARP|CODEX|OPENCODE|CONVENTIONS|MEMORY|SKILL)(?:\.\w{1,20})?\.md"
    r"|\.(?:cursor|cline|windsurf|roo|kilocode|goose)(?:rules|hints)(?:[/\\][^/\\\s]{1,100})?|[\w-]{1,60}\.mdc"
    r"|copilot-instructions\.md|[\w.-]{1,60}\.instructions\.md|\.rules)\Z",
    re.IGNORECASE,
)
