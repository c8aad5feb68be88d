"""What one run of a fault showed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Outcome"]

_PROBLEMS_SHOWN = 8


@dataclass(slots=True)
class Outcome:
    """``hits`` counts how often the fault struck inside the window it aims at; no hit is a failed run. ``cases``
    is more than one where a run makes many generated cases and each counts.
    """

    fault: str
    seed: int
    hits: int = 0
    lost: int = 0
    duplicated: int = 0
    peak_rss_mb: float = 0.0
    problems: list[str] = field(default_factory=list)
    cases: int = 1
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether the fault struck and everything that must hold did."""
        return self.hits > 0 and not self.findings

    @property
    def findings(self) -> list[str]:
        """All that the oracle objects to, one line each."""
        counted = ((self.lost, "lost"), (self.duplicated, "duplicated"))
        return [*(f"{count} {what}" for count, what in counted if count), *self.problems]

    def shows(self, pattern: str) -> bool:
        """Whether the oracle objects to what the pattern names: what a run without a protection must come to."""
        return any(re.search(pattern, finding) for finding in self.findings)

    def says(self) -> str:
        """All of it, for a person; begins with what replays the run."""
        lines = [
            f"{self.fault} seed {self.seed} (replay: HEADRACE_SEED={self.seed}): {self.hits} hits, "
            f"{self.lost} lost, {self.duplicated} duplicated, {self.peak_rss_mb:.0f} MB"
        ]
        lines += [f"  {problem}" for problem in self.problems[:_PROBLEMS_SHOWN]]
        if len(self.problems) > _PROBLEMS_SHOWN:
            lines.append(f"  and {len(self.problems) - _PROBLEMS_SHOWN} more")
        return "\n".join(lines)
