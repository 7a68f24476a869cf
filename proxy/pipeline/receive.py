"""The first stage of a request: identify the client, reserve a slot, read the body, reserve tokens."""

import asyncio

from policies.price import Tokens
from proxy import errors
from proxy.callers.admission import Admission
from proxy.callers.key_usage import KeyUsage, may_use, prompt_by_size
from proxy.dialects.bounds import most_unpacked
from proxy.dialects.reader import CountedRequest, RequestReader
from proxy.pipeline.sender import Senders
from proxy.pipeline.stages import Received
from proxy.server import content_coding

NO_TOKENS = Tokens(0)
_UNROUTABLE = (
    "The request body is too large after decompression to read the model that decides its upstream;"
    " send it uncompressed."
)


class Receiver:
    """Receives requests. One per process."""

    def __init__(self, key_usage: KeyUsage, reader: RequestReader) -> None:
        """Create a receiver."""
        self.admission = Admission()
        self.senders = Senders()
        self._key_usage = key_usage
        self._reader = reader

    async def receive(self, received: Received, *, goes_upstream: bool = True) -> None:
        """Identify the client, reserve a slot, and read the whole body. Raises ProxyError.

        goes_upstream: True if the caller must be allowed to use the path.
        """
        self.admit(received)
        sender, active = received.sender, received.active
        if goes_upstream and not sender.is_allowed:
            active.router.check_path(received.head, sender.caller)
            sender.is_allowed = True
        received.body = await received.exchange.request.read(active.server.max_body_bytes, received.admission.hold)
        if received.head.header(b"content-encoding") is None:
            received.body = active.router.with_served_model(received.body, received.head.dialect)

    def admit(self, received: Received) -> None:
        """Identify the client and reserve a slot.

        Raises AuthenticationError, the errors of a key over its limits, OverloadedError or TooManyRequestsError.
        """
        active = received.active
        received.known_sender = sender = self.senders.find(received.head, active)
        caller = sender.caller
        if caller.issued is not None:
            self._key_usage.check(caller.issued)
        received.admitted = self.admission.admit(
            caller.tenant, active.max_requests, caller.max_requests, active.max_buffered_bytes
        )

    async def reserve(self, received: Received, request: CountedRequest | None) -> None:
        """Reserve the tokens that a request may use of its key's limits. An unread request counts by its size."""
        if received.caller.issued is None or received.admission.reservation is not None:
            return
        head, body = received.head, received.body
        if request is None:
            is_coded = head.header(b"content-encoding") is not None
            estimate, model = may_use(prompt_by_size(len(body), is_coded=is_coded), None), head.model_of(body)
        else:
            settings = request.settings
            estimate = may_use(request.tokens, settings.max_output, settings.answers)
            model = settings.model or head.model
        await self.reserve_tokens(received, estimate, model)

    async def reserve_tokens(self, received: Received, estimate: Tokens = NO_TOKENS, model: str = "") -> None:
        """Reserve this estimate if the caller has an issued key. Raises the errors of a key over its limits."""
        if (issued := received.caller.issued) is not None:
            received.admission.reservation = await self._key_usage.reserve(issued, estimate, model)

    async def read(self, received: Received) -> CountedRequest | None:
        """Return the counted request; None if it is not supported, so that the upstream has to judge it."""
        body = await unpack_body(received)
        if body is None:
            return None
        sender, router, dialect = received.sender, received.active.router, received.head.dialect
        return await self._reader.read(body, sender.caller.scope, router.encoding, dialect, sender.repeated)


async def unpack_body(received: Received) -> bytes | None:
    """Return the content of the body; None for an unsupported coding or a content over the bounds."""
    coding = (received.head.header(b"content-encoding") or b"identity").lower()
    body, limit = received.body, received.active.server.max_body_bytes
    if coding == b"identity":
        return body
    if coding not in content_coding.READABLE:
        return None
    most_kept = min(limit, most_unpacked(len(body)))
    try:
        unpacked = await asyncio.to_thread(content_coding.unpack, body, coding, most_kept, limit)
    except content_coding.TooLargeError:
        raise errors.BodyTooLargeError("The request body is over the limit after decompression.") from None
    except content_coding.UndecodableError:
        return None
    if unpacked is not None:
        received.admission.hold(len(unpacked))
    elif received.active.router.depends_on_models:
        raise errors.BodyTooLargeError(_UNROUTABLE)
    return unpacked
