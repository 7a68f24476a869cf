"""Hooks, and the distribution of events to them."""

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
        """Pass an event to its method."""
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
    """Pass every event to every hook. A failing hook is logged and does not affect the others.

    dropped: failures by hook.
    """

    def __init__(self, *hooks: Hook, fault: Callable[[str, BaseException], None]) -> None:
        """Create the distribution. `fault` logs an error of the proxy under a name."""
        self.dropped: Counter[str] = Counter()
        self._request_callbacks = [(hook, get_request_callback(hook)) for hook in hooks]
        self._event_callbacks = [(hook, get_event_callback(hook)) for hook in hooks]
        self._fault = fault

    def on_request(self, event: RequestEnded, entry: RequestEntry) -> None:
        """Pass a finished request to all hooks."""
        for hook, callback in self._request_callbacks:
            try:
                callback(event, entry)
            except Exception as error:  # noqa: BLE001 - a listener must not break requests
                self._note_failure(hook, error)

    def on_event(self, event: Event) -> None:
        """Pass any other event to all hooks."""
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
    """Return the function that passes a finished request and its entry to a hook."""
    return hook.on_request if isinstance(hook, RequestListener) else lambda event, _: hook(event)


def get_event_callback(hook: Hook) -> Hook:
    """Return the function that passes any other event to a hook."""
    return hook.on_event if isinstance(hook, RequestListener) else hook


def observe_traced(
    observe: Hook, event: RequestEnded | CompactionEnded | SummarizerCalled, trace: Trace | None
) -> None:
    """Emit an event, and its trace if it has one."""
    observe(event)
    if trace is not None:
        observe(Traced(trace, event))
