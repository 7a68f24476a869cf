"""What a person pointed the agent to, as a tool delivered it: the text of a task that stands in a file or an issue."""

import re
from collections.abc import Sequence, Set

from policies.authorship.arguments import UnreadError, read, strings_in
from policies.authorship.wrappers import RULE_FILES
from policies.conversation.transcript import ToolCall, Utterance
from policies.record.rules import FileReadBy, RuleFile, content_of_file, file_read_by

_MOST_CHARACTERS = 8_000
_MOST_BRIEFS = 4
_DOCUMENT = re.compile(r"[^/\\]{1,120}\.(?:md|mdx|txt|rst|adoc|org|markdown)\Z", re.IGNORECASE)
# An issue in a person's words: any other number of theirs may stand in a call by chance.
_ISSUE = re.compile(r"(?:\bissues?\b[\s:/#]{0,3}(?:(?:no|nr|number)\b[\s.:#]{0,3})?|#)(\d{1,7})(?!\d)")
_NUMBER = re.compile(r"(?<![\w.])#?(\d{1,7})(?![\w.])")


def briefs_in(
    older: Sequence[RuleFile], utterances: Sequence[Utterance], said: Sequence[str], read_by: FileReadBy = file_read_by
) -> tuple[RuleFile, ...]:
    """The newest reading of each document and issue that a person names; `said`: his statements in all that is covered.

    Results that failed are none, and files of rules are kept as those.
    """
    found = {brief.name: brief for brief in older}
    words = "\n".join([*said, *(one.text for one in utterances if one.is_persons)]).lower()
    issues = {*_ISSUE.findall(words)}
    reading: dict[str, str] = {}
    for utterance in utterances:
        reading |= {
            call.id: name for call in utterance.calls if (name := _named_by(call, read_by(call), words, issues))
        }
        name = reading.get(utterance.answers or "")
        if name is not None and utterance.role == "tool" and (text := content_of_file(utterance)):
            found.pop(name, None)
            found[name] = RuleFile(name, text[:_MOST_CHARACTERS], utterance.position)
    return tuple([*found.values()][-_MOST_BRIEFS:])


def _named_by(call: ToolCall, path: str | None, words: str, issues: Set[str]) -> str | None:
    """What a call reads, if a person's words name it; None for all others. path: of the file that it reads."""
    if path is not None:
        name = _DOCUMENT.search(path)
        return path if name and name[0].lower() in words and not RULE_FILES.search(path) else None
    if not issues or "issue" not in f"{call.name} {call.arguments[:2_000]}".lower():
        return None
    try:
        asked = " ".join(strings_in(read(call.arguments)))
    except UnreadError:
        asked = call.arguments
    numbers = _NUMBER.findall(asked[:2_000] or call.arguments[:2_000]) or _NUMBER.findall(call.arguments[:2_000])
    named = next((number for number in numbers if number in issues), None)
    return f"issue {named}" if named else None
