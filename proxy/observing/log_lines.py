"""The lines that events leave in the log (docs/design.md, "Log")."""

from collections import OrderedDict

from proxy.lru import remember
from proxy.observing import events
from proxy.observing.events import Event
from proxy.observing.log import Log

# Conversations that a warning was given for.
_WARNED = 10_000
_WARNINGS = ("shut_down", "deadline", "truncated", "aborted")


class LogLines:
    """A hook that writes one line an event; some warnings once a conversation."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._warned: OrderedDict[str, bool] = OrderedDict()

    def __call__(self, event: Event) -> None:
        match event:
            case events.RequestEnded():
                self._request(event)
            case events.CompactionEnded():
                self._log.struct("info", "compaction", event)
            case events.PromptBilled(cut_off=True):
                where = {"tenant": event.tenant, "upstream": event.upstream, "session": event.session}
                self._log.warning("cut_off", **where, tokens_sent=event.estimated, tokens_read=event.billed)
            case events.RetriesExhausted():
                where = {"tenant": event.tenant, "session": event.session}
                self._log.warning("max_iterations", **where, retries=event.retries)
            case events.ShapeLearned():
                self._log.info("shape", upstream=event.upstream, tenant=event.tenant, shape=event.shape)
            case events.CopyRefused() | events.ThinkingRemoved():
                self._refusal(event)
            case events.Irreducible():
                self._once(event.session, "irreducible", session=event.session, tenant=event.tenant)
            case events.UnstableHistory():
                where = {"session": event.session, "tenant": event.tenant, "role": event.role}
                self._once(event.root, "unstable_history", message=event.message, **where)
            case events.StoreChanged():
                self._store(event)
            case _:
                pass

    def _store(self, event: events.StoreChanged) -> None:
        write = self._log.info if event.is_up else self._log.warning
        write("store_up" if event.is_up else "store_down", reason=event.reason)

    def _refusal(self, event: events.CopyRefused | events.ThinkingRemoved) -> None:
        fields = {name: getattr(event, name) for name in event.__slots__}
        self._log.warning("copy_refused" if isinstance(event, events.CopyRefused) else "thinking_removed", **fields)

    def _request(self, event: events.RequestEnded) -> None:
        self._log.struct("warning" if event.end in _WARNINGS else "info", "request", event)

    def _once(self, key: str, event: str, **fields: object) -> None:
        """Warn once a conversation, though it may look like another one each time."""
        if key not in self._warned:
            self._log.warning(event, **fields)
        remember(self._warned, key, True, _WARNED)
