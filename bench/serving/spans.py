"""How long things took, as few figures."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["at_share"]


def at_share(spans: Sequence[float], share: float) -> float:
    """Of sorted spans the one that so many are not longer than."""
    if not spans:
        raise SystemExit("nothing was measured: give it more time")
    return spans[min(len(spans) - 1, int(len(spans) * share))]
