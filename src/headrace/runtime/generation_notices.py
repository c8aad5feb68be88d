"""Prints a line when a flow begins a generation or switches to another one, whichever process does it.

The rows that readers see can change by a switch without any change of their own code. So every process that follows,
serves or derives topics prints it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.generations import all_generations, end_of_generations
from headrace.model.declarations import Declared
from headrace.model.generations import FlowGenerations
from headrace.runtime.part import Part

__all__ = ["GenerationNotices", "noting_generations"]

_CHECK_S = 1.0
_JOIN_S = 1.0


class GenerationNotices:
    """Watches the topics that an app declares, also those of other apps. The first ``poll`` only reads what exists."""

    def __init__(self, cluster: Cluster, app: Declared, note: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._topics = [topic.name for topic in app.topics]
        self._note = note
        self._end = -2
        self._known: dict[str, FlowGenerations] = {}

    def start(self, stop: threading.Event) -> Part:
        """Poll in a thread. Changes after this call are printed."""
        self._poll_if_possible()
        part = Part("notices", self._run, stop)
        part.start()
        return part

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(_CHECK_S):
            self._poll_if_possible()

    def _poll_if_possible(self) -> None:
        # If the log does not respond, the other parts report it.
        with suppress(LogError):
            self.poll()

    def poll(self) -> None:
        end = end_of_generations(self._cluster)
        if end == self._end:
            return
        recorded = all_generations(self._cluster)
        is_first, self._end = self._end == -2, end
        for topic in self._topics:
            now, before = recorded.get(topic), self._known.get(topic)
            if now is None:
                continue
            self._known[topic] = now
            if is_first:
                continue
            for line in _lines(topic, now, before):
                self._note(line)


@contextmanager
def noting_generations(cluster: Cluster, app: Declared, note: Callable[[str], None]) -> Iterator[None]:
    """Print the lines until the block ends."""
    stop = threading.Event()
    part = GenerationNotices(cluster, app, note).start(stop)
    try:
        yield
    finally:
        stop.set()
        part.join(_JOIN_S)


def _lines(topic: str, now: FlowGenerations, before: FlowGenerations | None) -> list[str]:
    serving = before.serving if before is not None else now.serving
    newest = before.newest if before is not None else serving
    lines = [
        f"flow {now.flow} of app {now.app}: generation {entry.number} begins ({entry.reason}); it is derived beside"
        f" generation {now.serving}, which serves"
        for entry in now.entries
        if entry.number > newest and entry.number != now.serving
    ]
    if now.serving != serving:
        lines.append(
            f"topic {topic} of app {now.app}: generation {now.serving} serves now, after generation {serving};"
            f" {_published(now)}"
        )
    return lines


def _published(now: FlowGenerations) -> str:
    if not now.is_published:
        return f"its rows are only in {now.serving_entry.topic} so far"
    last = now.switches[-1] if now.switches else None
    records = f"{last.published} records" if last is not None and last.after == now.serving else "records"
    return f"{records} of the difference were written to the topic, with the header headrace.switch"
