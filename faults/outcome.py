"""The outcome of one fault run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Outcome"]

_PROBLEMS_PRINTED_MAX = 8


@dataclass(slots=True)
class Outcome:
    """``hits`` counts how often the fault struck its target; a run without a hit has failed. ``cases`` is the number of
    tested cases, if a run generates several.
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
        """Whether the fault struck and the oracle reported no problem."""
        return self.hits > 0 and not self.findings

    @property
    def findings(self) -> list[str]:
        """Everything that the oracle reported, one line each."""
        counted = ((self.lost, "lost"), (self.duplicated, "duplicated"))
        return [*(f"{count} {what}" for count, what in counted if count), *self.problems]

    def has_finding(self, pattern: str) -> bool:
        """Whether a finding matches the pattern. If a run switches a protection off on purpose, the oracle
        must report such a finding.
        """
        return any(re.search(pattern, finding) for finding in self.findings)

    def report(self) -> str:
        """Return the outcome as text. Its first line contains the seed that replays the run."""
        lines = [
            f"{self.fault} seed {self.seed} (replay: HEADRACE_SEED={self.seed}): {self.hits} hits, "
            f"{self.lost} lost, {self.duplicated} duplicated, {self.peak_rss_mb:.0f} MB"
        ]
        lines += [f"  {problem}" for problem in self.problems[:_PROBLEMS_PRINTED_MAX]]
        if len(self.problems) > _PROBLEMS_PRINTED_MAX:
            lines.append(f"  and {len(self.problems) - _PROBLEMS_PRINTED_MAX} more")
        return "\n".join(lines)
