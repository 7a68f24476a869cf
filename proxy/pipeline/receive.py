"""The first hop of a request: who sends it, whether there is room for it, its body, and what it may use."""

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
    "The request body unpacks to more than is read here, and the model in it decides where it goes;"
    " send it uncompressed."
)


class Receiver:
    """Receives requests. One per process."""

    def __init__(self, key_usage: KeyUsage, reader: RequestReader) -> None:
        self.admission = Admission()
        self.senders = Senders()
        self._key_usage = key_usage
        self._reader = reader

    async def receive(self, received: Received, *, goes_upstream: bool = True) -> None:
        """Identify the client, reserve a slot, and read the whole body. Raises ProxyError.

        goes_upstream: True if the caller must be allowed to ask for the path.
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

        Raises the refusal of a client, of a key over its limits, OverloadedError or TooManyRequestsError.
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
        """Reserve the tokens that a request may use of the limits of its key, by its size if it was not read."""
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
        """Reserve this estimate if the caller has an issued key. Raises what the key is refused with."""
        if (issued := received.caller.issued) is not None:
            received.admission.reservation = await self._key_usage.reserve(issued, estimate, model)

    async def read(self, received: Received) -> CountedRequest | None:
        """Return the counted request, None if it cannot be understood: the upstream judges it then."""
        body = await unpack_body(received)
        if body is None:
            return None
        sender, router, dialect = received.sender, received.active.router, received.head.dialect
        return await self._reader.read(body, sender.caller.scope, router.encoding, dialect, sender.repeated)


async def unpack_body(received: Received) -> bytes | None:
    """Return the content of the body, None for a coding that is not read here and for what is not read at all."""
    used = (received.head.header(b"content-encoding") or b"identity").lower()
    body, limit = received.body, received.active.server.max_body_bytes
    if used == b"identity":
        return body
    if used not in content_coding.READABLE:
        return None
    most_kept = min(limit, most_unpacked(len(body)))
    try:
        unpacked = await asyncio.to_thread(content_coding.unpack, body, used, most_kept, limit)
    except content_coding.TooLargeError:
        raise errors.BodyTooLargeError("The request body is over the limit after decompression.") from None
    except content_coding.UndecodableError:
        return None
    if unpacked is not None:
        received.admission.hold(len(unpacked))
    elif received.active.router.depends_on_models:
        raise errors.BodyTooLargeError(_UNROUTABLE)
    return unpacked
