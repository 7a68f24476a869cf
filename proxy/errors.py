"""The errors that the proxy itself returns, with HTTP status, code and retry advice."""


class ProxyError(Exception):
    """A fault of the proxy. The client gets it in the format of its dialect, with OpenAI's fields."""

    status = 500
    code = "internal_error"
    type = "server_error"
    retryable = False
    message = ""
    retry_after: int | None = None
    cause: str | None = None
    ends_connection = False

    def __init__(self, message: str = "", *, param: str | None = None) -> None:
        """Create an error. `message` replaces the class's own."""
        self.message = message or self.message
        super().__init__(self.message)
        self.param = param

    def fields(self) -> dict[str, object]:
        """Return the fields of the error object."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of the response. OpenAI's SDKs obey `x-should-retry` before their own rules."""
        headers = [(b"content-type", b"application/json"), (b"x-should-retry", b"true" if self.retryable else b"false")]
        if self.retry_after is not None:
            headers.append((b"retry-after", str(self.retry_after).encode()))
        return headers


class ClientGoneError(Exception):
    """The client disconnected, so the response is dropped."""


class InvalidRequestError(ProxyError):
    """The request is invalid. Change it before you send it again."""

    status = 400
    code = "invalid_request"
    type = "invalid_request_error"


class AmbiguousPathError(InvalidRequestError):
    """Another server may read this path differently. The connection is closed after the response."""

    ends_connection = True


class InvalidJSONError(InvalidRequestError):
    """The request body is not a JSON object."""

    code = "invalid_json"


class BodyTooLargeError(InvalidRequestError):
    """The request body is larger than `server.max_body_bytes`, as sent or after decompression."""

    status = 413
    code = "request_too_large"


class AuthenticationError(ProxyError):
    """The API key is unknown, invalid or missing."""

    status = 401
    code = "invalid_api_key"
    type = "invalid_request_error"


class NotAllowedError(ProxyError):
    """The key is not allowed to do this."""

    status = 403
    code = "not_allowed"
    type = "invalid_request_error"


class ContentHiddenError(NotAllowedError):
    """The content of conversations is hidden: the tenant's `inspect` does not allow reading it."""

    code = "content_hidden"


class TooManyFailuresError(AuthenticationError):
    """Too many wrong tokens came from this address. Try again later."""

    status = 429
    code = "too_many_failures"
    message = "Too many wrong tokens came from this address; try again later."

    def __init__(self, retry_after: int) -> None:
        """Create an error. `retry_after` is in seconds."""
        super().__init__()
        self.retry_after = retry_after


class NotFoundError(InvalidRequestError):
    """The proxy has nothing with this name."""

    status = 404
    code = "not_found"


class ErasedError(InvalidRequestError):
    """The requested data was erased."""

    status = 410
    code = "erased"
    message = "Erased or expired."


class NothingToUndoError(InvalidRequestError):
    """The session has no record to undo."""

    status = 409
    code = "nothing_to_undo"
    message = "The session has no record in use: none was made, or all of them were undone."


class MethodNotAllowedError(InvalidRequestError):
    """The path supports only the methods in `allow`."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, allowed: str) -> None:
        """Create an error. `allowed` is the value of the header."""
        super().__init__(message)
        self._allowed = allowed.encode()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers with the allowed methods."""
        return [*super().headers(), (b"allow", self._allowed)]


class WebSocketError(InvalidRequestError):
    """WebSockets are not supported. Clients continue over HTTP after this status."""

    status = 426
    code = "websocket_not_supported"
    message = "WebSockets are not supported; send the request by POST over HTTP."

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers with the protocol, as RFC 9110, section 15.5.22, requires."""
        return [*super().headers(), (b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade")]


class StoreUnavailableError(ProxyError):
    """The store did not respond, so the operation may not have been done."""

    status = 503
    code = "store_unavailable"
    retryable = True


class UpstreamConnectionError(ProxyError):
    """The upstream was unreachable, or disconnected before its response. `cause` is one word for the log."""

    status = 502
    code = "upstream_unreachable"
    retryable = True

    def __init__(self, message: str, cause: str | None = None) -> None:
        """Create an error with its cause."""
        super().__init__(message)
        self.cause = cause


class UpstreamTimeoutError(ProxyError):
    """The upstream did not respond in time. `cause` is one word for the log."""

    status = 504
    code = "upstream_timeout"
    retryable = True

    def __init__(self, message: str, cause: str) -> None:
        """Create an error with its cause."""
        super().__init__(message)
        self.cause = cause


class UpstreamAnswerError(ProxyError):
    """The upstream returned an invalid response in the middle of a stream."""

    status = 502
    code = "upstream_error"


# Seconds after which a failed compaction may succeed. A failed summarizer is paused for as long. Other reasons are
# permanent.
_PASSES = {
    "summarizer_timeout": 60,
    "summarizer_transient": 60,
    "summarizer_cooling_down": 60,
    "summarizer_invalid": 30,
}


class CompactionFailedError(ProxyError):
    """The conversation could not be compacted, and the policy forbids sending it unchanged (`fail: closed`).

    R3 gives the error its own name and details. They are inside OpenAI's format.
    """

    status = 503
    code = "compaction_failed"

    def __init__(self, reason: str, session: str, message: str = "") -> None:
        """Create an error for a session. `message` replaces the class's own."""
        failed = f"The conversation could not be compacted ({reason})"
        super().__init__(message or f"{failed}, and the policy forbids sending it unchanged.")
        self.reason = reason
        self.session = session
        self.retryable = reason in _PASSES
        self.retry_after = _PASSES.get(reason)

    def fields(self) -> dict[str, object]:
        """Return the fields with R3's details."""
        details = {"sessionId": self.session, "reason": self.reason, "canRetry": self.retryable}
        return {**super().fields(), "name": "CompactionError", "details": details}


class ContextLengthError(InvalidRequestError):
    """The conversation is too long, and compaction could not help.

    The text is the one that clients of the dialect recognize. `details` are headers about the attempts.
    """

    code = "context_length_exceeded"

    def __init__(self, message: str, param: str, details: list[tuple[bytes, bytes]]) -> None:
        """Create an error with headers about the attempts."""
        super().__init__(message, param=param)
        self._details = details

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers with those about the attempts."""
        return [*super().headers(), *self._details]


class LoopError(InvalidRequestError):
    """The request has passed this proxy before: an upstream's base_url leads back to it."""

    status = 508
    code = "loop_detected"


class URITooLongError(InvalidRequestError):
    """The request's address is too long."""

    status = 414
    code = "uri_too_long"
    message = "The address of the request is too long."


class HeadersTooLargeError(InvalidRequestError):
    """The headers are too many or too large."""

    status = 431
    code = "headers_too_large"
    message = "The headers of the request are too many or too large."


class RequestTimeoutError(InvalidRequestError):
    """The client did not send its request in time."""

    status = 408
    code = "request_timeout"


class OverloadedError(ProxyError):
    """Too many requests, or bytes of them, are in flight (`server.max_requests`, `max_buffered_bytes`)."""

    status = 503
    code = "server_overloaded"
    retryable = True
    message = "Too many requests are in flight; try again in a moment."
    retry_after = 1


class OutOfFilesError(ProxyError):
    """The process has reached its limit of open files and connections."""

    status = 503
    code = "too_many_open_files"
    retryable = True
    message = "Too many connections are open; try again in a moment."
    retry_after = 1


class TooManyRequestsError(ProxyError):
    """Too many requests of this tenant are in flight: the limit is its `max_requests`."""

    status = 429
    code = "rate_limit_exceeded"
    type = "rate_limit_error"
    retryable = True
    message = "Too many of your requests are in flight; try again in a moment."
    retry_after = 1


class KeyRateError(TooManyRequestsError):
    """An issued key has reached a limit per minute (`concertina keys add`)."""

    def __init__(self, limit: str, retry_after: int) -> None:
        """Create an error. `limit` is a text for people, `retry_after` is in seconds."""
        super().__init__(f"This API key is limited to {limit}; try again in {retry_after} s.")
        self.retry_after = retry_after


class LimitReservedError(TooManyRequestsError):
    """The rest of an issued key's limit is reserved by its requests in flight. Less may be used when they end."""

    retry_after = 2

    def __init__(self, limit: str) -> None:
        """Create an error. `limit` is a text for people."""
        super().__init__(
            f"Requests of this API key that are in flight may use the rest of its {limit};"
            f" try again in {self.retry_after} s, or request less output."
        )


class BudgetSpentError(ProxyError):
    """An issued key has used up its limit of a day or a month in UTC.

    The code is OpenAI's for an account without credit, which clients do not retry.
    """

    status = 429
    code = "insufficient_quota"
    type = "insufficient_quota"

    def __init__(self, limit: str, retry_after: int) -> None:
        """Create an error. `limit` is a text for people, `retry_after` is in seconds."""
        super().__init__(f"This API key has used its {limit}; ask the operator of this proxy for more.")
        self.retry_after = retry_after


class KeysUnknownError(ProxyError):
    """The store does not respond: the operation may not be done, or an issued key is unknown."""

    status = 503
    code = "store_unavailable"
    retryable = True
    message = "API keys cannot be looked up at the moment; try again."
    retry_after = 2


class EndedError(ProxyError):
    """The proxy ended the request, maybe in the middle of its response."""

    retryable = True


class RequestDeadlineError(EndedError):
    """The request took longer than `server.request_deadline`."""

    status = 504
    code = "request_deadline"

    def __init__(self, seconds: float) -> None:
        """Create an error. `seconds` is the deadline."""
        super().__init__(f"The request took longer than {seconds:g} s (server.request_deadline).")


class ShuttingDownError(EndedError):
    """The process stopped before the request ended."""

    status = 503
    code = "server_shutting_down"
    message = "This server is shutting down and could not finish the request; send it again."
    retry_after = 1
