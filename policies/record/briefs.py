"""Task descriptions that a person refers to and a tool has read: documents and issues."""

import re
from collections.abc import Sequence, Set

from policies.authorship.arguments import UnreadError, read, strings_in
from policies.authorship.wrappers import RULE_FILES
from policies.conversation.transcript import ToolCall, Utterance
from policies.record.rules import FileReadBy, RuleFile, content_of_file, file_read_by

_MOST_CHARACTERS = 8_000
_MOST_BRIEFS = 4
_DOCUMENT = re.compile(r"[^/\\]{1,120}\.(?:md|mdx|txt|rst|adoc|org|markdown)\Z", re.IGNORECASE)
# An issue as people write it. Other numbers of theirs may occur in a call by chance.
_ISSUE = re.compile(r"(?:\bissues?\b[\s:/#]{0,3}(?:(?:no|nr|number)\b[\s.:#]{0,3})?|#)(\d{1,7})(?!\d)")
_NUMBER = re.compile(r"(?<![\w.])#?(\d{1,7})(?![\w.])")


def briefs_in(
    older: Sequence[RuleFile], utterances: Sequence[Utterance], said: Sequence[str], read_by: FileReadBy = file_read_by
) -> tuple[RuleFile, ...]:
    """Return the newest reading of each document and issue that a person names.

    said: the person's statements in everything covered. Failed results and files of rules are not included.
    """
    briefs = {brief.name: brief for brief in older}
    words = "\n".join([*said, *(utterance.text for utterance in utterances if utterance.is_persons)]).lower()
    issues = {*_ISSUE.findall(words)}
    reading: dict[str, str] = {}
    for utterance in utterances:
        reading |= {
            call.id: name for call in utterance.calls if (name := _brief_read_by(call, read_by(call), words, issues))
        }
        name = reading.get(utterance.answers or "")
        if name is not None and utterance.role == "tool" and (text := content_of_file(utterance)):
            briefs.pop(name, None)
            briefs[name] = RuleFile(name, text[:_MOST_CHARACTERS], utterance.position)
    return tuple([*briefs.values()][-_MOST_BRIEFS:])


def _brief_read_by(call: ToolCall, path: str | None, words: str, issues: Set[str]) -> str | None:
    """Return the document or issue that a call reads, if a person names it; else None.

    path: the file that the call reads.
    """
    if path is not None:
        name = _DOCUMENT.search(path)
        return path if name and name[0].lower() in words and not RULE_FILES.search(path) else None
    if not issues or "issue" not in f"{call.name} {call.arguments[:2_000]}".lower():
        return None
    try:
        arguments = " ".join(strings_in(read(call.arguments)))
    except UnreadError:
        arguments = call.arguments
    numbers = _NUMBER.findall(arguments[:2_000] or call.arguments[:2_000]) or _NUMBER.findall(call.arguments[:2_000])
    issue = next((number for number in numbers if number in issues), None)
    return f"issue {issue}" if issue else None
