"""Who is told of events."""

from collections import Counter
from collections.abc import Callable

from proxy.telemetry.events import CompactionEnded, Event, Hook, RequestEnded, SummarizerCalled, Traced
from proxy.telemetry.history_entries import RequestEntry, make_request_entry
from proxy.telemetry.trace import Trace

RequestCallback = Callable[[RequestEnded, RequestEntry], None]


class NotTakenError(Exception):
    """Raised by a hook that cannot take another event."""


class RequestListener:
    """A hook that reads a finished request by its entry, which is computed once for all listeners."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, RequestEnded):
            self.on_request(event, make_request_entry(event))
        else:
            self.on_event(event)

    def on_request(self, event: RequestEnded, entry: RequestEntry) -> None:
        """Read a finished request."""
        raise NotImplementedError

    def on_event(self, event: Event) -> None:
        """Read any other event."""


class Hooks(RequestListener):
    """Tells every hook of an event. One that fails is a fault of ours, and no other one's; `dropped` counts by hook."""

    def __init__(self, *hooks: Hook, fault: Callable[[str, BaseException], None]) -> None:
        """`fault` logs an error of ours under a name."""
        self.dropped: Counter[str] = Counter()
        self._request_callbacks = [(hook, get_request_callback(hook)) for hook in hooks]
        self._event_callbacks = [(hook, get_event_callback(hook)) for hook in hooks]
        self._fault = fault

    def on_request(self, event: RequestEnded, entry: RequestEntry) -> None:
        for hook, callback in self._request_callbacks:
            try:
                callback(event, entry)
            except Exception as error:  # noqa: BLE001 - a listener must not break what happens
                self._note_failure(hook, error)

    def on_event(self, event: Event) -> None:
        for hook, callback in self._event_callbacks:
            try:
                callback(event)
            except Exception as error:  # noqa: BLE001 - as above
                self._note_failure(hook, error)

    def _note_failure(self, hook: Hook, error: Exception) -> None:
        self.dropped[type(hook).__name__] += 1
        if not isinstance(error, NotTakenError):
            self._fault("hook_failed", error)


def get_request_callback(hook: Hook) -> RequestCallback:
    """Return what calls a hook with a finished request and its entry."""
    return hook.on_request if isinstance(hook, RequestListener) else lambda event, _: hook(event)


def get_event_callback(hook: Hook) -> Hook:
    """Return what calls a hook with any other event."""
    return hook.on_event if isinstance(hook, RequestListener) else hook


def observe_traced(
    observe: Hook, event: RequestEnded | CompactionEnded | SummarizerCalled, trace: Trace | None
) -> None:
    """Report an event, and its trace if it has one."""
    observe(event)
    if trace is not None:
        observe(Traced(trace, event))
