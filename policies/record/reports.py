"""Reports of tools, hooks and other agents in a user's name. They never count as directives."""

import re
from collections.abc import Sequence

import msgspec

from policies.authorship.wrappers import OF_FILES
from policies.conversation.transcript import Utterance, shorten
from policies.record.call_lines import in_line

_STORED = 40
_CHARACTERS = 400
# The tags of a report, which are removed from its text.
_TAG = re.compile(r"</?[A-Za-z][\w:.-]{0,60}(?: [^<>\n]{0,200})?>")
# Results in messages of their own are shown as results.
_OF_TOOLS = "tool"


class Report(msgspec.Struct, frozen=True):
    """A report in a user's name.

    by: the element that contains it, or the client.
    position: of its message.
    """

    by: str
    text: str
    position: int


def reports_in(older: Sequence[Report], utterances: Sequence[Utterance]) -> tuple[Report, ...]:
    """Return the newest reports, the older ones first. The text of a file is no report."""
    newer = [
        Report(utterance.by, shorten(" ".join(without_tags(utterance.text).split()), _CHARACTERS), utterance.position)
        for utterance in utterances
        if utterance.role == "user"
        and utterance.voice == "report"
        and utterance.by != _OF_TOOLS
        and utterance.by not in OF_FILES
    ]
    return (*older, *newer)[-_STORED:]


def without_tags(text: str) -> str:
    """Return a text with spaces in place of its tags."""
    return _TAG.sub(" ", text)


def report_line(report: Report) -> str:
    """Return the line of a report."""
    return f"- [{report.position}] {in_line(f'{report.by}: {report.text}')}"
