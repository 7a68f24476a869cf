"""Errors of upstreams that require another form: chat templates with alternating roles, old servers.

Matching is generous: a wrong match costs one more request that fails like the first.
"""

import re
from collections.abc import Callable

import msgspec

# Sentences of chat templates and of providers with similar checks, one row a family.
_REFUSALS = re.compile(
    "|".join(
        (
            r"\balternat",
            r"\binterleav",
            r"\b(?:consecutive|successive|multiple|two) .{0,30}\b(?:user|roles?|messages?)\b",
            r"\b(?:roles?|user|messages?)\b.{0,40}\bin a row\b",
            r"unexpected role .{0,12}after role",
            r"\bonly .{0,60}\broles? (?:are|is) (?:supported|allowed|accepted|valid)\b",
            r"role of .{0,30}\b(?:odd|even)\b|\bodd number\b",
            r"chat.?template|jinja|templateerror|raise_exception",
            r"交替|连续.{0,16}(?:user|用户|角色|消息|role)|奇数",
        )
    )
)
# For the proxy's question after a client's prompt, also: an unknown tool choice or field.
_FORMS = re.compile(
    "|".join(
        (
            r"\btemplate\b.{0,20}(?:error|:\s?:\d)|\b(?:render|apply|execut|pars)\w*\b.{0,30}\btemplate\b",
            r"\broles?\b.{0,20}\bnot (?:supported|allowed)\b|\b(?:invalid|unknown|unsupported) (?:message )?role\b",
            r"\btool.?choice\b",
            r"\b(?:unknown|unexpected|unrecognized|unsupported|extra|additional) "
            r"(?:request )?(?:fields?|parameters?|arguments?|propert(?:y|ies)|inputs?|keys?)\b",
            r"\bextra.?forbidden\b",
        )
    )
)
# platform.openai.com, codex issues: "The encrypted content gAAA... could not be verified."
_SEALED = re.compile(
    r"\bencrypted.{0,3}(?:content|reasoning)\b.{0,400}"
    r"\b(?:could not|cannot|can not|failed|unable|invalid|not valid|(?:did|does) not match)\b"
    r"|\b(?:could not|cannot|can not|failed to|unable to) (?:verify|decrypt|parse|read)\b.{0,80}"
    r"\bencrypted.{0,3}(?:content|reasoning)\b"
    r"|\breasoning\b.{0,200}\bencrypted (?:with|by|for) (?:another|a different)\b"
)
# Errors about thinking with a signature of another account or provider.
_UNSIGNED = re.compile(
    r"\binvalid.{0,3}(?:signature|data).{0,12}\b(?:redacted_)?thinking\b"
    r"|\bthinking\b.{0,80}\bsignature\b.{0,24}\b(?:verification failed|invalid|not valid|could not be verified)\b"
)
_TEMPORARY = frozenset({408, 409, 429})
_INTERNAL_ERROR = 500
_MAX_TEXT = 4_000


def refuses_roles(report: bytes) -> bool:
    """Return True if a template requires alternating roles. report: the body of an error, or empty."""
    return bool(report) and _REFUSALS.search(_text_of(report)) is not None


def refuses_form(status: int, report: bytes) -> bool:
    """Return True if a question is rejected for its form, so that another form may be accepted.

    This includes status 500, which servers send if their template raises. Errors of rate limits and gateways do not
    count.
    """
    if not report or status in _TEMPORARY or status > _INTERNAL_ERROR:
        return False
    text = _text_of(report)
    return _REFUSALS.search(text) is not None or _FORMS.search(text) is not None


def _text_of(report: bytes) -> str:
    try:
        text = str(msgspec.json.decode(report))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        text = report.decode("utf-8", "replace")
    return text[:_MAX_TEXT].lower()


def refuses_thinking(report: bytes, header: Callable[[bytes], bytes | None]) -> bool:
    """Return True if thinking is rejected because it was made after another prompt.

    Source: platform.claude.com, "Preserved thinking". Claude Code recognizes it by the same words and header.
    """
    if not report:
        return False
    phrases = (b"bound to a different conversation", b"not created in this conversation")
    return any(phrase in report for phrase in phrases) or header(b"anthropic-thinking-prefix-mismatch") is not None


def refuses_sealed(report: bytes) -> bool:
    """Return True if sealed reasoning is rejected, for example by another account behind a gateway."""
    if not report or b"invalid_encrypted_content" in report:
        return bool(report)
    text = _text_of(report)
    return _SEALED.search(text) is not None or _UNSIGNED.search(text) is not None


def refuses_usage(report: bytes) -> bool:
    """Return True if a server does not support the request for a stream's usage."""
    return b"stream_options" in report or b"include_usage" in report
