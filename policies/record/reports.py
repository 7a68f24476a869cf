"""What was reported in a user's name by tools, hooks and other agents: kept as that, never as a directive."""

import re
from collections.abc import Sequence

import msgspec

from policies.authorship.wrappers import OF_FILES
from policies.conversation.transcript import Utterance, shorten
from policies.record.call_lines import in_line

_STORED = 40
_CHARACTERS = 400
# The elements of a report: it is told as what it says.
_TAG = re.compile(r"</?[A-Za-z][\w:.-]{0,60}(?: [^<>\n]{0,200})?>")
# Results that stand in messages of their own are told as results.
_OF_TOOLS = "tool"


class Report(msgspec.Struct, frozen=True):
    """by: the element that it stood in, or the client. position: of its message."""

    by: str
    text: str
    position: int


def reports_in(older: Sequence[Report], utterances: Sequence[Utterance]) -> tuple[Report, ...]:
    """Return the newest, those of the span behind the older ones. The text of a file is no report."""
    newer = [
        Report(one.by, shorten(" ".join(without_tags(one.text).split()), _CHARACTERS), one.position)
        for one in utterances
        if one.role == "user" and one.voice == "report" and one.by != _OF_TOOLS and one.by not in OF_FILES
    ]
    return (*older, *newer)[-_STORED:]


def without_tags(text: str) -> str:
    return _TAG.sub(" ", text)


def report_line(report: Report) -> str:
    return f"- [{report.position}] {in_line(f'{report.by}: {report.text}')}"
