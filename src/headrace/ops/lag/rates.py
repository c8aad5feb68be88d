"""Growth rates of counters. Each counter has a bounded number of recent samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass

__all__ = ["Rate", "Rates"]

_WINDOW_S = 60.0
_SAMPLES_MAX = 16


@dataclass(frozen=True, slots=True)
class Rate:
    per_s: float
    """The rate over the window, or since the first sample."""
    last_per_s: float
    """The rate over the last few seconds: since the newest sample that is at least a sixteenth of the window old."""


class Rates:
    """Computes rates. ``window_s`` is the window of ``Rate.per_s``."""

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_s = window_s
        self._step_s = window_s / _SAMPLES_MAX
        self._samples: dict[Hashable, deque[tuple[float, int]]] = {}

    def add_sample(self, key: Hashable, at_s: float, count: int) -> Rate | None:
        """Add a sample and return the rate; None for the first sample. A count that decreases discards the earlier
        samples, because the counter was recreated.
        """
        samples = self._samples.setdefault(key, deque())
        if samples and (count < samples[-1][1] or at_s <= samples[-1][0]):
            samples.clear()
        while len(samples) > 1 and at_s - samples[0][0] > self._window_s:
            samples.popleft()
        rate = None
        if samples:
            first_s, first = samples[0]
            recent = (sample for sample in reversed(samples) if at_s - sample[0] >= self._step_s)
            last_s, last = next(recent, samples[0])
            rate = Rate((count - first) / (at_s - first_s), (count - last) / (at_s - last_s))
        # Replace the newest sample if it is too close to its predecessor. This bounds the number of samples.
        if len(samples) > 1 and samples[-1][0] - samples[-2][0] < self._step_s:
            samples.pop()
        samples.append((at_s, count))
        return rate

    def retain(self, keys: Collection[Hashable]) -> None:
        """Remove the samples of all other keys."""
        for key in [key for key in self._samples if key not in keys]:
            del self._samples[key]
