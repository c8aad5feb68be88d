"""Where a row of a real-time flow comes from: the one record of the flow's input that it was made of.

Each such row has a header ``__headrace.source`` with the partition and the offset of that record, ``3/1042``. A flow
that begins again after a crash writes rows a second time, each with the same source. Whoever writes does so in the
order of the offsets, and leaves nothing out. So within one partition of the output, of the rows from one partition of
the input, whatever is not above the highest source so far is a repeat. ``Sources`` are those highest ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

__all__ = ["HEADER", "Sources", "place_in", "reaches", "source_of"]

HEADER = "__headrace.source"
Sources = dict[str, int]
"""By ``<partition of the output>/<partition of the input>``: the offset in the input of the last row."""
# As many digits as a partition and an offset can have: a stranger's record with more would hide all rows behind it.
_WRITTEN = re.compile(rb"([0-9]{1,9})/([0-9]{1,18})")


def source_of(headers: Iterable[tuple[str, object]] | None) -> tuple[int, int] | None:
    """Partition and offset; None for a record that no real-time flow has written."""
    for name, value in headers or ():
        if name == HEADER:
            told = _WRITTEN.fullmatch(value) if isinstance(value, bytes) else None
            return (int(told[1]), int(told[2])) if told else None
    return None


def place_in(output: int, source: int) -> str:
    """The key in ``Sources``."""
    return f"{output}/{source}"


def reaches(sources: Mapping[str, int]) -> dict[int, int]:
    """Per partition of the input, what comes behind the last record of which anything was seen."""
    found: dict[int, int] = {}
    for place, offset in sources.items():
        number = int(place.partition("/")[2])
        found[number] = max(offset + 1, found.get(number, 0))
    return found
