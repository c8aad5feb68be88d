"""The last quarter of an hour of every number that is drawn: a ring per node, of one size from the beginning."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

__all__ = ["FIELDS", "SAMPLES_MAX", "Ring"]

SAMPLES_MAX = 900
"""A quarter of an hour, at one a second."""

FIELDS: Mapping[str, tuple[str, ...]] = {
    "source": ("per_s",),
    "topic": ("per_s", "end", "bytes"),
    "flow": (
        *("per_s_in", "per_s_out", "latency_ms", "lag_records", "lag_bytes", "lag_seconds"),
        *("watermark_ms", "state_rows", "state_bytes", "late", "dead"),
    ),
    "view": ("per_s", "applied", "lag_records", "lag_bytes", "lag_seconds", "dead"),
}
"""By kind of node."""


class Ring:
    """One thread notes, any may read: what is being overwritten meanwhile is left out."""

    def __init__(self, kind: str) -> None:
        self.fields = FIELDS[kind]
        self._width = 1 + len(self.fields)
        self._room = array("d", bytes(8 * self._width * SAMPLES_MAX))
        self._count = 0

    def note(self, at_ms: int, node: Mapping[str, Any]) -> None:
        begin = self._count % SAMPLES_MAX * self._width
        row = array("d", [at_ms, *(_number(node, name) for name in self.fields)])
        self._room[begin : begin + self._width] = row
        self._count += 1

    def samples(self, since_ms: int) -> list[list[float | None]]:
        """The oldest first."""
        count = self._count
        room = self._room[:]
        found = []
        for number in range(max(0, self._count - SAMPLES_MAX, count - SAMPLES_MAX), count):
            begin = number % SAMPLES_MAX * self._width
            at_ms, *values = room[begin : begin + self._width]
            if at_ms >= since_ms:
                found.append([int(at_ms), *(None if math.isnan(one) else one for one in values)])
        return found


def _number(node: Mapping[str, Any], name: str) -> float:
    whole, _, part = name.partition("_")
    value = node["lag"][part] if whole == "lag" else node[name]
    return math.nan if value is None else float(value)
