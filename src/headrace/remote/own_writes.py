"""What this program wrote, as tokens, so that what it reads afterwards shows it.

A token tells of the partitions that its records went to, and is not taken apart here. So the newest of each partition
is kept: no more than there are partitions. A server takes several, with commas in between.
"""

from __future__ import annotations

import threading

from headrace.remote.errors import RemoteError
from headrace.remote.written import Written

__all__ = ["OwnWrites"]

_CHARS_MAX = 16_000
_EXCEPTIONS_MAX = 10_000


class OwnWrites:
    """For any thread."""

    def __init__(self) -> None:
        self._tokens: dict[str, dict[int, str]] = {}
        self._no_matter: set[tuple[str, str, str]] = set()
        """View, topic and its tokens: of these the view shows nothing, now or ever."""
        self._lock = threading.Lock()

    def note(self, written: Written) -> None:
        with self._lock:
            known = self._tokens.setdefault(written.topic, {})
            for place in written.records:
                known[place.partition] = written.token

    def of_topics(self, view: str) -> dict[str, str]:
        """What the view must show, by topic."""
        with self._lock:
            told = {topic: ",".join(dict.fromkeys(known.values())) for topic, known in self._tokens.items()}
            return {topic: text for topic, text in told.items() if (view, topic, text) not in self._no_matter}

    def after(self, view: str) -> str:
        text = ",".join(self.of_topics(view).values())
        if len(text) > _CHARS_MAX:
            raise RemoteError(
                "this client wrote to more partitions than a question can name",
                hint="forget what was written with forget(), or read with after=None",
            )
        return text

    def except_for(self, view: str, topic: str, text: str) -> None:
        """The view does not derive from what the tokens tell of, or not any more."""
        with self._lock:
            if len(self._no_matter) >= _EXCEPTIONS_MAX:
                # They are found out again.
                self._no_matter.clear()
            self._no_matter.add((view, topic, text))

    def forget(self) -> None:
        with self._lock:
            self._tokens.clear()
