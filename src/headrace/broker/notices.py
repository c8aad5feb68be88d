"""What clients did wrong, said so that a log can be read and searched: one line each, and not without end.

An event has a name that stays the same (``oversized-frame``), a sentence, and values. A flood of one kind is cut: a few
lines in a while are written, and the next one says how many were not. All are counted.
"""

from __future__ import annotations

import logging
from collections import Counter

from headrace.clock import Clock

__all__ = ["Notices"]

_log = logging.getLogger("headrace.broker")
_BURST = 10
_PERIOD_S = 10.0


class Notices:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._periods: dict[str, list[float]] = {}
        self._unsaid: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """How often a connection was closed for each kind of event, said or not."""
        self.limited: Counter[str] = Counter()
        """How often a request came upon a limit, for each kind of event, said or not."""

    def say(self, event: str, text: str, values: dict[str, object] | None = None) -> None:
        """Of a connection that is closed. ``event`` is one of a few fixed names: it is the key under which it is
        counted and cut.
        """
        self.counts[event] += 1
        self._write(event, text, values)

    def limit(self, event: str, text: str, values: dict[str, object] | None = None) -> None:
        """Of a request that is refused, or answered in part, because of a limit."""
        self.limited[event] += 1
        self._write(event, text, values)

    def _write(self, event: str, text: str, values: dict[str, object] | None) -> None:
        now = self._clock.steady()
        recent = self._periods.setdefault(event, [])
        while recent and now - recent[0] >= _PERIOD_S:
            recent.pop(0)
        if len(recent) >= _BURST:
            self._unsaid[event] += 1
            return
        recent.append(now)
        values = dict(values or {})
        unsaid = self._unsaid.pop(event, 0)
        if unsaid:
            text += f" ({unsaid} more of this kind were not logged)"
            values["not_logged"] = unsaid
        _log.warning("%s", text, extra={"event": event, "values": values})
