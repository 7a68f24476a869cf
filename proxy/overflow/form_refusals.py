"""Errors of upstreams that take a request in another form: chat templates that want roles in turns, old servers.

Read generously: a wrong "yes" costs one more request that ends as the first one did.
"""

import re
from collections.abc import Callable

import msgspec

# Sentences of chat templates and of providers that check like them, one row a family.
_REFUSALS = re.compile(
    "|".join(
        (
            r"\balternat",
            r"\binterleav",
            r"\b(?:consecutive|successive|multiple|two) .{0,30}\b(?:user|roles?|messages?)\b",
            r"\b(?:roles?|user|messages?)\b.{0,40}\bin a row\b",
            r"unexpected role .{0,12}after role",
            r"role of .{0,30}\b(?:odd|even)\b|\bodd number\b",
            r"chat.?template|jinja|templateerror|raise_exception",
            r"交替|连续.{0,16}(?:user|用户|角色|消息|role)|奇数",
        )
    )
)
_MAX_TEXT = 4_000


def refuses_roles(report: bytes) -> bool:
    """Whether a template wants user and assistant messages in turns; `report` is the body of an error, or empty."""
    if not report:
        return False
    try:
        text = str(msgspec.json.decode(report))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        text = report.decode("utf-8", "replace")
    return _REFUSALS.search(text[:_MAX_TEXT].lower()) is not None


def refuses_thinking(report: bytes, header: Callable[[bytes], bytes | None]) -> bool:
    """Whether thinking stands behind another prompt than the one it was made for.

    platform.claude.com, "Preserved thinking"; by these words and this header Claude Code knows it too.
    """
    if not report:
        return False
    words = (b"bound to a different conversation", b"not created in this conversation")
    return any(said in report for said in words) or header(b"anthropic-thinking-prefix-mismatch") is not None


def refuses_usage(report: bytes) -> bool:
    """Whether a server does not know the question for a stream's usage."""
    return b"stream_options" in report or b"include_usage" in report
