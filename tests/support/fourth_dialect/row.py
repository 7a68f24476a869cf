"""The dialect as a row of the table; importing this before the rest of the proxy adds it."""

from proxy.dialects import table
from proxy.dialects.base import Dialect
from proxy.dialects.paths import DialectPath
from tests.support.fourth_dialect import answers, contents, questions, requests

GEMINI = Dialect(
    "gemini",
    (
        DialectPath(("models", "{model}:generateContent"), stream=False),
        DialectPath(("models", "{model}:streamGenerateContent"), stream=True),
        DialectPath(("models", "{model}:countTokens"), "count", stream=False),
    ),
    requests.ARRAY,
    requests.settings,
    contents.ITEMS,
    answers,
    questions,
    requests,
    provider="gcp.gemini",
    operation="generate_content",
    key_header=b"x-goog-api-key",
    home="generativelanguage.googleapis.com",
    model_key=None,
    with_output=requests.with_output,
)


def add() -> None:
    """As a row in the table's own text would."""
    table.DIALECTS = (*table.DIALECTS, GEMINI)
