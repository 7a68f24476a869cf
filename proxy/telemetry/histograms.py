"""Histograms as plain numbers: an observation is a search among a few bounds, and two additions."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

OTHER = "other"
Labels = tuple[str, ...]


class Exemplar(NamedTuple):
    """A traced observation.

    at: Unix seconds.
    """

    trace_id: str
    value: float
    at: float


class Histogram:
    """A histogram.

    counts: observations up to each bound and above the previous one, the last above all. sum: of all. exemplars: the
    newest traced ones by the index of their bound.
    """

    __slots__ = ("counts", "exemplars", "sum")

    def __init__(self, bounds: int) -> None:
        """Create an empty histogram with so many bounds."""
        self.counts = [0] * (bounds + 1)
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}


class Histograms:
    """One histogram per set of labels, up to a number of sets. Beyond that all labels are `other`."""

    __slots__ = ("_most", "bounds", "of")

    def __init__(self, bounds: Sequence[float], most: int) -> None:
        """Create histograms for at most `most` sets of labels."""
        self.bounds = bounds
        self.of: dict[Labels, Histogram] = {}
        self._most = most

    def observe(self, labels: Labels, value: float) -> None:
        """Count a value."""
        self.observe_all(labels, (value,))

    def observe_all(self, labels: Labels, values: Sequence[float]) -> None:
        """Count values with the same labels."""
        if not values:
            return
        histogram = self.of.get(labels) or self._new(labels)
        bounds, counts = self.bounds, histogram.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        histogram.sum += sum(values)

    def set_exemplar(self, labels: Labels, exemplar: Exemplar) -> None:
        """Keep a traced and already counted observation as the newest of its bound."""
        histogram = self.of.get(labels) or self._new(labels)
        histogram.exemplars[bisect_left(self.bounds, exemplar.value)] = exemplar

    def _new(self, labels: Labels) -> Histogram:
        if len(self.of) >= self._most:
            labels = (OTHER,) * len(labels)
        return self.of.setdefault(labels, Histogram(len(self.bounds)))
