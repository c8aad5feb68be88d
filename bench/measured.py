"""Figures of ours and of a peer, as they come in, round by round; in the end they are rows of results."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

__all__ = ["Measured"]


class Measured:
    def __init__(self) -> None:
        self._figures: dict[tuple[str, str, str, float | None], dict[str, list[float]]] = defaultdict(
            lambda: {"us": [], "them": []}
        )

    def note(self, who: str, name: str, peer: str, value: float, unit: str, goal: float | None = 1.0) -> None:
        """One figure of one round. A row without a goal only shows something."""
        self._figures[name, peer, unit, goal][who].append(value)
        print(f"  {name}: {who} {value:,.2f} {unit}, load {os.getloadavg()[0]:.1f}", flush=True)

    def both(self, name: str, peer: str, us: float, them: float, unit: str, goal: float | None = 1.0) -> None:
        self.note("us", name, peer, us, unit, goal)
        self.note("them", name, peer, them, unit, goal)

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "peer": peer, **both, "unit": unit, "goal": goal}
            for (name, peer, unit, goal), both in self._figures.items()
        ]
