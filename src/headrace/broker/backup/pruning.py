"""Which moments are kept, and which files nobody needs any more.

Every moment of the last hour is kept; of the last day the last one of each minute; of all that is to be kept the last
one of each hour. So there are at most some 1,800 of them and 24 for each day, however often one is taken. The newest is
kept always.

A piece is named by the manifests from the one with its own sequence up to the one that came without it. When none of
these is kept, the piece can go. Pieces of an earlier run that the newest manifest does not name are taken for dropped
by the next one, which keeps them for long enough.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.broker.backup.manifest import ManifestName

__all__ = ["Dropped", "kept_moments", "kept_names", "removable"]

_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000


class Dropped(NamedTuple):
    place: str
    file: str
    created: int
    """Sequence of the first manifest that may name it."""
    dropped: int
    """Sequence of the first one behind it that does not."""


def kept_moments(names: Sequence[ManifestName], now_ms: int, keep_ms: int) -> list[ManifestName]:
    """Those that can be restored to; ``names`` are in order."""
    kept: dict[tuple[int, int], ManifestName] = {}
    for name in names:
        age_ms = now_ms - name.moment_ms
        if age_ms < _HOUR_MS:
            slot = (1, name.sequence)
        elif age_ms > keep_ms:
            continue
        elif age_ms < _DAY_MS:
            slot = (_MINUTE_MS, name.moment_ms // _MINUTE_MS)
        else:
            slot = (_HOUR_MS, name.moment_ms // _HOUR_MS)
        kept[slot] = name
    if names:
        kept[0, 0] = names[-1]
    return sorted(set(kept.values()))


def kept_names(names: Sequence[ManifestName], moments: Iterable[ManifestName]) -> set[ManifestName]:
    """The moments, and what they are told on top of."""
    wanted = set(moments)
    bases = {name.base for name in wanted}
    return wanted | {name for name in names if name.sequence in bases and name.base == name.sequence}


def removable(dropped: Iterable[Dropped], moments: Sequence[ManifestName]) -> list[Dropped]:
    sequences = [name.sequence for name in moments]
    return [
        one for one in dropped if bisect_left(sequences, one.created) >= bisect_left(sequences, one.dropped)
    ]
