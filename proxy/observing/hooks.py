"""Who is told of events."""

from collections import Counter
from collections.abc import Callable

from proxy.observing.events import CompactionEnded, Event, Hook, RequestEnded, SummarizerCalled, Traced
from proxy.observing.trace import Trace


class NotTakenError(Exception):
    """What a hook raises that has no room for an event."""


class Hooks:
    """Tells every hook of an event. One that fails is a fault of ours, and no other one's; `dropped` counts by hook."""

    def __init__(self, *hooks: Hook, fault: Callable[[str, BaseException], None]) -> None:
        """`fault` logs an error of ours under a name."""
        self.dropped: Counter[str] = Counter()
        self._hooks = hooks
        self._fault = fault

    def __call__(self, event: Event) -> None:
        for hook in self._hooks:
            try:
                hook(event)
            except NotTakenError:
                self.dropped[type(hook).__name__] += 1
            except Exception as error:  # noqa: BLE001 - a listener must not break what happens
                self.dropped[type(hook).__name__] += 1
                self._fault("hook_failed", error)


def observe_traced(
    observe: Hook, event: RequestEnded | CompactionEnded | SummarizerCalled, trace: Trace | None
) -> None:
    """Report an event, and its trace if it has one."""
    observe(event)
    if trace is not None:
        observe(Traced(trace, event))
