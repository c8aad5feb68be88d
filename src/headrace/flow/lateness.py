"""Which events were late, found from the events alone.

A proof must not ask the flow what it left out. The rule, written here a second time and sharing no code with the
running flow (``headrace.flow.watermark``, ``headrace.flow.batch``):

- An input with an event time promises that no event comes after one that is ``late`` newer. After some batches its
  promise is the greatest event time that they have shown, of late events too, less ``late``.
- The watermark of a batch is the least promise of all such inputs after the batches before it. There is none until each
  of them has shown an event time, and it never falls.
- An event is late if its time is before the watermark of its batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from headrace.model.topic import Topic

__all__ = ["Watermarks"]

_MICROSECOND = timedelta(microseconds=1)


class Watermarks:
    """Of one batch after the other; ``advance`` goes to the next."""

    def __init__(
        self,
        streams: Iterable[Topic],
        seen_us: Mapping[str, int] | None = None,
        watermark_us: int | None = None,
    ) -> None:
        """``seen_us`` and ``watermark_us`` are what the batches before have come to, where those are unknown here."""
        self._allowance_us = {topic.name: topic.late // _MICROSECOND for topic in streams if topic.time}
        self._seen_us = {name: at for name, at in (seen_us or {}).items() if name in self._allowance_us}
        self.current_us = watermark_us
        """The watermark of the batch that comes next."""

    def advance(self, newest_us: Mapping[str, int | None]) -> None:
        """``newest_us`` are the greatest event times of a batch, by input."""
        for name, newest in newest_us.items():
            if newest is not None and name in self._allowance_us:
                self._seen_us[name] = max(newest, self._seen_us.get(name, newest))
        if not self._allowance_us or self._seen_us.keys() != self._allowance_us.keys():
            return
        promise = min(at - self._allowance_us[name] for name, at in self._seen_us.items())
        if self.current_us is None or promise > self.current_us:
            self.current_us = promise
