"""What one run of a fault showed."""

from __future__ import annotations

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
        return self.hits > 0 and not (self.problems or self.lost or self.duplicated)

    @property
    def caught(self) -> bool:
        """Whether the oracle objected: what a run without the protection must come to."""
        return bool(self.problems or self.lost or self.duplicated)

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
