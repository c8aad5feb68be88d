"""What the last verification of each view found, as the log has it."""

from __future__ import annotations

from typing import Any

from headrace.client.cluster import Cluster
from headrace.ops.results import TOPIC, last_results

__all__ = ["Verdicts"]


class Verdicts:
    """For one thread at a time. The results are read again when there is a new one."""

    def __init__(self, cluster: Cluster, app: str) -> None:
        self._cluster = cluster
        self._app = app
        self._ends: dict[int, int] = {}
        self._known: dict[str, dict[str, Any]] = {}

    def look(self) -> dict[str, dict[str, Any]]:
        """By view."""
        if self._cluster.topic(TOPIC) is None:
            self._ends, self._known = {}, {}
            return {}
        ends = self._cluster.ends(TOPIC)
        if ends != self._ends:
            self._known = {
                one.name: {
                    "verdict": one.verdict,
                    "line": one.line(),
                    "began_ms": one.began_ms,
                    "seconds": one.seconds,
                }
                for one in last_results(self._cluster, self._app)
                if one.what == "view"
            }
            self._ends = ends
        return self._known
