"""`POST /v1/compaction/explain`: the plan for a request now, and the reasons."""

from urllib.parse import parse_qs

import msgspec
from msgspec.structs import replace

from proxy import errors
from proxy.callers.api_head import ApiHead
from proxy.compaction.engine import Engine
from proxy.compaction.explain.explainer import explain
from proxy.compaction.explain.explanation import Explanation
from proxy.compaction.plan_input import plan_input_of
from proxy.dialects import table
from proxy.dialects.base import Dialect
from proxy.pipeline.client_compaction import CompactionAnswers
from proxy.pipeline.prepare import Preparer
from proxy.pipeline.receive import Receiver, unpack_body
from proxy.pipeline.stages import Received
from proxy.runtime.fail_open import FailOpen


class ExplainEndpoint:
    """Explains requests. Nothing is sent upstream. One per process."""

    def __init__(
        self,
        receiver: Receiver,
        preparer: Preparer,
        engine: Engine,
        fail_open: FailOpen,
    ) -> None:
        """Create the endpoint."""
        self._receiver = receiver
        self._preparer = preparer
        self._engine = engine
        self._fail_open = fail_open

    async def answer(self, received: Received) -> None:
        """Respond with the explanation as JSON."""
        if received.head.method != "POST":
            raise errors.MethodNotAllowedError("Send the request to explain by POST.", "POST")
        await self._receiver.receive(received, goes_upstream=False)
        await self._receiver.reserve_tokens(received)
        explanation = await self._fail_open.run(self._explain(received), None)
        if explanation is None:
            raise errors.ProxyError("The request could not be explained; the log says where it failed.")
        body = msgspec.json.encode(explanation)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await received.exchange.start(200, headers)
        await received.exchange.write(body, more=False)

    async def _explain(self, received: Received) -> Explanation:
        body, caller, router = await unpack_body(received), received.caller, received.active.router
        head = received.head
        head = head.asking(_stated_dialect(head) or table.dialect_of_body(body or b"") or head.dialect)
        request = body and await self._engine.reader.read(body, caller.scope, router.encoding, head.dialect)
        if not request:
            reason = await self._preparer.unread_reason(received)
            return Explanation(head.model_of(received.body), caller.policy_name, "bypass", reason)
        plan_input = plan_input_of(head, router, caller, received.mode, request)
        if not request.compacts:
            return await explain(self._engine, plan_input, request)
        compaction, plan_input = await self._preparer.without_compaction(received, plan_input)
        engine = self._engine.read_only()
        explained = await explain(engine, plan_input, plan_input.request)
        verdict = await CompactionAnswers(engine).verdict(await engine.prompt_builder.place(plan_input), compaction)
        return explained if verdict is None else replace(explained, outcome=verdict[0], reason=verdict[1])


def _stated_dialect(head: ApiHead) -> Dialect | None:
    """Return the dialect that the query names; None if it names none. Raises InvalidRequestError."""
    name = next(iter(parse_qs(head.query.decode("latin-1"), keep_blank_values=True).get("dialect", [])), None)
    if name is not None and name not in table.names():
        raise errors.InvalidRequestError(f"dialect must be one of {', '.join(table.names())}.", param="dialect")
    return None if name is None else table.dialect_named(name)
