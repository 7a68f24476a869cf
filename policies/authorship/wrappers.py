"""Texts that agents' harnesses put into the user role or around a person's text, from `wrappers.toml`.

Texts without a row are judged by their form (policies/authorship/parts.py).
"""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, cast

from policies.tables import read_table

Voice = Literal["person", "harness", "report", "summary", "instructions"]
"""`harness`: about the client and its state. `report`: of a tool, a hook or another agent. `summary`: a client's own
compaction. `instructions`: a file of rules from the client.
"""


class _Element(NamedTuple):
    """A row of `elements`. The fields are those of `wrappers.toml`."""

    name: str
    voice: Voice
    known: bool
    alone: bool
    plain: bool
    within: str
    files: bool


class Beginning(NamedTuple):
    """A form of whole texts. by: the name of the author in a record."""

    voice: Voice
    by: str
    pattern: re.Pattern[str]


class Frame(NamedTuple):
    """A form of texts in which a client's two texts surround a person's words.

    is_open: True if the second one may be missing.
    """

    client: str
    begins: re.Pattern[str]
    ends: re.Pattern[str]
    is_open: bool


def _element(row: Mapping[str, str | bool]) -> _Element:
    return _Element(
        name=str(row["name"]),
        voice=cast("Voice", row["voice"]),
        known=bool(row.get("known")),
        alone=bool(row.get("alone")),
        plain=bool(row.get("plain")),
        within=str(row.get("within", "")),
        files=bool(row.get("files")),
    )


def _beginning(row: Mapping[str, str], pattern: str) -> Beginning:
    return Beginning(cast("Voice", row["voice"]), row.get("by", row["client"]), re.compile(pattern))


_FILE = read_table("policies.authorship", "wrappers")
_ELEMENTS = tuple(map(_element, _FILE["elements"]))
ELEMENTS: Mapping[str, Voice] = {row.name: row.voice for row in _ELEMENTS if row.voice != "person"}
"""The voices of elements that no person types, by name."""
OF_FILES = frozenset(row.name for row in _ELEMENTS if row.files)
"""Elements with the text of files."""
TYPED = frozenset(row.name for row in _ELEMENTS if row.voice == "person")
"""Elements with a person's words. Everything else in the same text is a harness's."""
PLAIN_TYPED = frozenset(row.name for row in _ELEMENTS if row.plain)
"""Those of them with plain words as names. They contain a person's words only if the text begins with one."""
TYPED_WITHIN: Mapping[str, str] = {row.name: row.within for row in _ELEMENTS if row.within}
"""The element with a person's words inside an element of a harness."""
ALONE = frozenset(row.name for row in _ELEMENTS if row.alone)
"""Elements after which nobody types in the same text. The text after them is the client's, or has escaped from the
report.
"""
KNOWN = frozenset(row.name for row in _ELEMENTS if row.known)
"""Elements of clients that put no unmarked text into the user role except a person's."""
_NO_WORD = re.compile(r"[-_ :.]|[a-z][A-Z]")
DISTINCT = tuple(row.name for row in _ELEMENTS if _NO_WORD.search(row.name))
"""Elements whose names are no plain words, so that a text with such a name is about the element."""

# The header of a person's reply to a tool of Cline and similar clients.
ANSWER_HEADER = re.compile(
    r"(?:\[(?:ask_followup_question|attempt_completion|plan_mode_respond|new_task)[^\]\n]{0,300}\] Result:"
    r"|the following (?:feedback|context|message):)\s{0,20}\Z"
)
# The header of a result whose content is the next text.
RESULT_HEADER = re.compile(r"\s{0,20}\[[\w-]{2,40}(?: for [^\]\n]{0,300})?\] Result:\s{0,20}")
# The text of an editor before a request, and between the two.
EDITOR = re.compile(r"\s{0,20}# Context from my IDE setup:(?s:.{0,100000}?)\n## My request for Codex:[ \t]{0,9}\n?")

BEGINNINGS = tuple(_beginning(row, rf"\s{{0,20}}(?:{row['begins']})") for row in _FILE["beginnings"])
"""Texts without an element, recognized by their beginning. The row applies to the end of the text."""
# Any of these beginnings. Nearly no text has one, and a single pattern rules them out in a third of the time.
ANY_BEGINNING = re.compile(rf"\s{{0,20}}(?:{'|'.join(row['begins'] for row in _FILE['beginnings'])})")
ENDINGS = tuple((row["has"], _beginning(row, rf"{row['ends']}\Z")) for row in _FILE["endings"])
"""Texts without an element, recognized by their end. Only texts with the first item are matched."""
FRAMES = tuple(
    Frame(
        row["client"],
        re.compile(rf"\s{{0,20}}(?:{row['begins']})"),
        re.compile(row["ends"]),
        bool(row.get("open")),
    )
    for row in _FILE["frames"]
)
ANY_FRAME = re.compile(rf"\s{{0,20}}(?:{'|'.join(row['begins'] for row in _FILE['frames'])})")

# Lines of a client next to a person's words in one text.
LINES = re.compile(
    r"^(?:\[Request interrupted by user[^\]\n]{0,40}\]|Tools? loaded\.)[ \t\r]{0,9}(?:\n|\Z)", re.MULTILINE
)

# A person's text while the agent worked, as clients deliver it: within a reminder, or in a result.
WHILE_WORKING = re.compile(
    r"\s{0,20}(?:The|A) user (?:has )?(?:sent|typed|added|interjected|submitted)[^\n:]{0,80}:[ \t]{0,9}\n?"
    r"(?P<said>(?s:.{1,200000}))\Z"
)
# The client's text after those words.
_CLOSINGS = "|".join(re.escape(row["begins"]) for row in _FILE["closings"])
CLOSING = re.compile(rf"\n\s{{0,20}}(?:{_CLOSINGS})")

# A person's choice as a result: the beginning of such a result, and the tools that ask.
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
# No reply: an error, or the client's text for a person who did not reply.
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
# The introductions of clients in the system prompt.
INTRODUCTIONS = re.compile("|".join(row["says"] for row in _FILE["introductions"]))

# Names of files with rules for agents.
_RULE_FILES = "|".join(row["file"] for row in _FILE["rule_files"])
RULE_FILES = re.compile(rf"(?:\A|[/\\])(?:{_RULE_FILES})\Z", re.IGNORECASE)
