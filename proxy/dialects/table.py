"""The dialects that are spoken, found by the path of a request."""

from proxy.dialects.base import Dialect
from proxy.dialects.chat import answers, messages, questions, requests

CHAT = Dialect("chat", ("chat", "completions"), None, requests.ARRAY, requests.settings, messages, answers, questions)
DIALECTS = (CHAT,)
_BY_PATH = {dialect.path: dialect for dialect in DIALECTS}


def dialect_of(path: tuple[str, ...]) -> Dialect | None:
    """Of requests to this path, as of `paths.resource`; None where no conversations go."""
    return _BY_PATH.get(path)
