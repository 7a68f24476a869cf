"""The endpoint POST /admin/api/explain."""

from typing import Annotated

import msgspec
from starlette.requests import Request

from proxy.admin.access import Visitor
from proxy.admin.guard import body_of
from proxy.admin.trials.explaining import MOST_EXPLAINED, Explaining, Made, Question
from proxy.compaction.explain.explanation import Explanation
from proxy.dialects.surrogates import readable
from proxy.errors import InvalidRequestError


class Explanations(msgspec.Struct, frozen=True):
    """The explanations.

    session: the one whose records were used; None without a store. made: None if no summarizer was called.
    """

    explanations: list[Explanation]
    session: str | None
    made: Made | None


class TrialEndpoints:
    """The handler with the name of its row in the table of endpoints."""

    def __init__(self, explaining: Explaining) -> None:
        """Create a handler."""
        self._explaining = explaining

    async def explain(self, request: Annotated[Request, Question], visitor: Visitor) -> Explanations:
        """Explain the request in a question."""
        try:
            question = msgspec.json.decode(readable(await body_of(request, MOST_EXPLAINED)), type=Question)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise InvalidRequestError('Send {"body": {...}, "policies": [...], "tenant": "..."} as JSON.') from None
        answer = await self._explaining.answer(visitor, question)
        return Explanations([each.explanation for each in answer.explained], answer.session, answer.made)
