"""What programs have tried: POST /admin/api/explain."""

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
    """session: whose records were looked at; None where no store was. made: None where no summarizer was asked."""

    explanations: list[Explanation]
    session: str | None
    made: Made | None


class TrialEndpoints:
    """The handler, named as its row in the table of endpoints."""

    def __init__(self, explaining: Explaining) -> None:
        self._explaining = explaining

    async def explain(self, request: Annotated[Request, Question], visitor: Visitor) -> Explanations:
        try:
            asked = msgspec.json.decode(readable(await body_of(request, MOST_EXPLAINED)), type=Question)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise InvalidRequestError('Send {"body": {...}, "policies": [...], "tenant": "..."} as JSON.') from None
        found = await self._explaining.answer(visitor, asked)
        return Explanations([each.explanation for each in found.explained], found.session, found.made)
