"""What a client asks of a provider's API, by the head of its request."""

from policies.cached import cached_property
from proxy.api.paths import Mount, is_ours, reading
from proxy.dialects.base import Dialect
from proxy.dialects.table import DEFAULT_DIALECT, introduced_by
from proxy.dialects.texts import printable
from proxy.observing.trace import Trace
from proxy.server.head import RequestHead
from proxy.server.headers import Headers

_LONGEST_SHOWN = 256


class ApiHead(RequestHead):
    """reading: what the path means, however it is spelled."""

    def __init__(
        self, method: str, target: str, headers: Headers, trace: Trace | None = None, written_in: Dialect | None = None
    ) -> None:
        """`written_in`: the dialect, whatever its path says."""
        super().__init__(method, target, headers, trace)
        self.reading = reading(self.path.encode("latin-1"))
        self._written_in = written_in

    @cached_property
    def is_ours(self) -> bool:
        """Whether it is answered here and never relayed."""
        return is_ours(self.reading)

    @cached_property
    def dialect(self) -> Dialect:
        """In which it is read and answered: chat's where nothing tells."""
        return self.spoken or DEFAULT_DIALECT

    @cached_property
    def spoken(self) -> Dialect | None:
        """That of its path, or what its client is known by; None where nothing tells."""
        if self._written_in is not None:
            return self._written_in
        below, found = self.reading.below, self.reading.found
        dialect = introduced_by(self.header) if below is None else below.dialect
        return dialect and dialect.of_path(self.reading.model, found.path.stream if found else None)

    @property
    def model(self) -> str:
        """That which its path names; empty where it names none."""
        return self.reading.model

    def model_of(self, body: bytes) -> str:
        """The model of its request, as far as that can be told without understanding the body."""
        return self.model or self.dialect.model_of(body)

    @cached_property
    def mount(self) -> Mount:
        """Where its client has its API."""
        return self.reading.mount.for_query(self.target.partition("?")[2])

    @cached_property
    def conversation(self) -> Dialect | None:
        """That of a request of a conversation; None for any other request."""
        found = self.reading.found
        if self.method != "POST" or found is None or found.path.does == "count":
            return None
        return found.dialect

    @cached_property
    def is_compact(self) -> bool:
        """Whether it asks for a compaction, and no answer."""
        found = self.reading.found
        return self.method == "POST" and found is not None and found.path.does == "compact"

    @cached_property
    def is_count(self) -> bool:
        """Whether it asks for the tokens of a conversation."""
        found = self.reading.found
        return self.method == "POST" and found is not None and found.path.does == "count"

    @cached_property
    def shown_path(self) -> str:
        """As much of the path as may stand in a log."""
        return printable(self.path, _LONGEST_SHOWN)

    def asking(self, dialect: Dialect) -> "ApiHead":
        """The same of a request in this dialect."""
        dialect = dialect.of_path(self.reading.mount.model)
        target = "/".join((self.reading.mount.prefix or "/v1", *dialect.question_path(dialect.model)))
        return ApiHead("POST", target, self.headers, self.trace, dialect)


def api_head(head: RequestHead) -> ApiHead:
    """The head of a request that was made by `Served.head`."""
    return head if isinstance(head, ApiHead) else ApiHead(head.method, head.target, head.headers, head.trace)
