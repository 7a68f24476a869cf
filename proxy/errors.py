"""Every error this proxy answers with itself: whose fault it is, its HTTP status, its code and whether to retry."""


class ProxyError(Exception):
    """An error the client sees in the shape of its dialect; message, type, param and code are OpenAI's."""

    status = 500
    code = "internal_error"
    type = "server_error"
    retryable = False
    message = ""
    retry_after: int | None = None
    cause: str | None = None
    ends_connection = False

    def __init__(self, message: str = "", *, param: str | None = None) -> None:
        """`message`: in place of the class's own."""
        self.message = message or self.message
        super().__init__(self.message)
        self.param = param

    def fields(self) -> dict[str, object]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the answer; `x-should-retry` is what OpenAI's SDKs obey before their own rules."""
        headers = [(b"content-type", b"application/json"), (b"x-should-retry", b"true" if self.retryable else b"false")]
        if self.retry_after is not None:
            headers.append((b"retry-after", str(self.retry_after).encode()))
        return headers


class ClientGoneError(Exception):
    """The client closed the connection; there is nobody to answer."""


class InvalidRequestError(ProxyError):
    """The client's fault: it can be sent again only after it was changed."""

    status = 400
    code = "invalid_request"
    type = "invalid_request_error"


class AmbiguousPathError(InvalidRequestError):
    """Another server may read this path as another one: nothing that follows it on its connection is served."""

    ends_connection = True


class InvalidJSONError(InvalidRequestError):
    """The body is not the JSON object that a request is."""

    code = "invalid_json"


class BodyTooLargeError(InvalidRequestError):
    """The body is over `server.max_body_bytes`, as sent or after decompression."""

    status = 413
    code = "request_too_large"


class AuthenticationError(ProxyError):
    """The caller's key belongs to no tenant and the proxy is closed to strangers."""

    status = 401
    code = "invalid_api_key"
    type = "invalid_request_error"


class NotAllowedError(ProxyError):
    """The caller asked for something its tenant may not have."""

    status = 403
    code = "not_allowed"
    type = "invalid_request_error"


class ContentHiddenError(NotAllowedError):
    """What a conversation says is asked for, and its tenant's `inspect` does not allow it to be read."""

    code = "content_hidden"


class TooManyFailuresError(AuthenticationError):
    """Another wrong token from an address that so many came from lately."""

    status = 429
    code = "too_many_failures"
    message = "Too many wrong tokens came from this address; try again later."

    def __init__(self, retry_after: int) -> None:
        """`retry_after` is in seconds."""
        super().__init__()
        self.retry_after = retry_after


class NotFoundError(InvalidRequestError):
    """There is nothing of ours by this name."""

    status = 404
    code = "not_found"


class ErasedError(InvalidRequestError):
    """What was asked for was erased."""

    status = 410
    code = "erased"
    message = "Erased or expired."


class NothingToUndoError(InvalidRequestError):
    """The session has no record that could be undone."""

    status = 409
    code = "nothing_to_undo"
    message = "The session has no record in use: none was made, or all of them were undone."


class MethodNotAllowedError(InvalidRequestError):
    """The path is ours and takes the methods in `allowed` only."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self._allowed = allowed.encode()

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"allow", self._allowed)]


class WebSocketError(InvalidRequestError):
    """A WebSocket is asked for where there are none. After this status clients go on over HTTP."""

    status = 426
    code = "websocket_not_supported"
    message = "There are no WebSockets here; send the request by POST over HTTP."

    def headers(self) -> list[tuple[bytes, bytes]]:
        """RFC 9110, section 15.5.22, wants the protocol to be named."""
        return [*super().headers(), (b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade")]


class StoreUnavailableError(ProxyError):
    """The store could not do what was asked of it and must not be promised otherwise."""

    status = 503
    code = "store_unavailable"
    retryable = True


class UpstreamConnectionError(ProxyError):
    """The upstream could not be reached, or went away before it answered. `cause` is one word for the log."""

    status = 502
    code = "upstream_unreachable"
    retryable = True

    def __init__(self, message: str, cause: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class UpstreamTimeoutError(ProxyError):
    """The upstream did not answer in time. `cause` as above."""

    status = 504
    code = "upstream_timeout"
    retryable = True

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class UpstreamAnswerError(ProxyError):
    """The upstream's answer, an error without an error object or no event stream, fits nowhere in a stream begun."""

    status = 502
    code = "upstream_error"


# Seconds after which a failed compaction may work (a summarizer that failed is left alone for as long); others stay.
_PASSES = {
    "summarizer_timeout": 60,
    "summarizer_transient": 60,
    "summarizer_cooling_down": 60,
    "summarizer_invalid": 30,
}


class CompactionFailedError(ProxyError):
    """The conversation could not be compacted, and the policy forbids to send it as it came (`fail: closed`).

    R3 gives the error a name and details of its own; they stand inside OpenAI's shape.
    """

    status = 503
    code = "compaction_failed"

    def __init__(self, reason: str, session: str, message: str = "") -> None:
        """`message`: in place of the class's own."""
        failed = f"The conversation could not be compacted ({reason})"
        super().__init__(message or f"{failed}, and the policy does not allow to send it as it came.")
        self.reason = reason
        self.session = session
        self.retryable = reason in _PASSES
        self.retry_after = _PASSES.get(reason)

    def fields(self) -> dict[str, object]:
        details = {"sessionId": self.session, "reason": self.reason, "canRetry": self.retryable}
        return {**super().fields(), "name": "CompactionError", "details": details}


class ContextLengthError(InvalidRequestError):
    """An overflow that compaction cannot solve, in the words by which clients of its dialect know one.

    `told` are headers that say what was tried.
    """

    code = "context_length_exceeded"

    def __init__(self, message: str, param: str, told: list[tuple[bytes, bytes]]) -> None:
        super().__init__(message, param=param)
        self._told = told

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), *self._told]


class LoopError(InvalidRequestError):
    """The request has passed this proxy before: an upstream's base_url leads back here."""

    status = 508
    code = "loop_detected"


class URITooLongError(InvalidRequestError):
    """The request's target is longer than any that is used."""

    status = 414
    code = "uri_too_long"
    message = "The address of the request is too long."


class HeadersTooLargeError(InvalidRequestError):
    """The headers are more, or larger, than any client sends."""

    status = 431
    code = "headers_too_large"
    message = "The headers of the request are too many or too large."


class RequestTimeoutError(InvalidRequestError):
    """The client did not send its request in time."""

    status = 408
    code = "request_timeout"


class OverloadedError(ProxyError):
    """As many requests, or bytes of them, are under way as `server` allows (max_requests, max_buffered_bytes)."""

    status = 503
    code = "server_overloaded"
    retryable = True
    message = "Too many requests are under way here; try again in a moment."
    retry_after = 1


class OutOfFilesError(ProxyError):
    """This process may open no further file or connection, whatever the upstream does."""

    status = 503
    code = "too_many_open_files"
    retryable = True
    message = "Too many connections are open here; try again in a moment."
    retry_after = 1


class TooManyRequestsError(ProxyError):
    """As many requests of this tenant are under way as its `max_requests` allows."""

    status = 429
    code = "rate_limit_exceeded"
    type = "rate_limit_error"
    retryable = True
    message = "Too many of your requests are under way at once; try again in a moment."
    retry_after = 1


class KeyRateError(TooManyRequestsError):
    """An issued key has used in a minute what it may (`concertina keys add`)."""

    def __init__(self, limit: str, retry_after: int) -> None:
        """`limit`: as people read it. `retry_after` is in seconds."""
        super().__init__(f"This API key is limited to {limit}; try again in {retry_after} s.")
        self.retry_after = retry_after


class LimitReservedError(TooManyRequestsError):
    """What an issued key has left may all be used by its requests in flight; it can be less when they have ended."""

    retry_after = 2

    def __init__(self, limit: str) -> None:
        """`limit`: as people read it."""
        super().__init__(
            f"Requests of this API key that are in flight may use the rest of its {limit};"
            f" try again in {self.retry_after} s, or ask for less output."
        )


class BudgetSpentError(ProxyError):
    """An issued key has used what it may in a day or a month of UTC.

    The code is OpenAI's for an account without credit, which clients do not repeat.
    """

    status = 429
    code = "insufficient_quota"
    type = "insufficient_quota"

    def __init__(self, limit: str, retry_after: int) -> None:
        """As above."""
        super().__init__(f"This API key has used its {limit}; ask the operator of this proxy for more.")
        self.retry_after = retry_after


class KeysUnknownError(ProxyError):
    """Issued keys lie in the store, which has not answered since the start: whose this one is cannot be told."""

    status = 503
    code = "store_unavailable"
    retryable = True
    message = "API keys cannot be looked up here at the moment; try again."
    retry_after = 2


class EndedError(ProxyError):
    """Ends a request that is not done, also in the middle of its answer."""

    retryable = True


class RequestDeadlineError(EndedError):
    """The request was not done within `server.request_deadline`."""

    status = 504
    code = "request_deadline"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The request was not done within {seconds:g} s (server.request_deadline).")


class ShuttingDownError(EndedError):
    """The process ends, and the request did not end before its time to drain was over."""

    status = 503
    code = "server_shutting_down"
    message = "This server is shutting down and could not finish the request; send it again."
    retry_after = 1
