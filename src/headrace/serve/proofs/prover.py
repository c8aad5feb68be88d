"""The port to whoever can derive a view again: a run that has Spark, and the flows' functions compiled."""

from __future__ import annotations

from typing import Protocol

from headrace.ops.report import Report
from headrace.ops.verify import Count, Say

__all__ = ["Prover"]


class Prover(Protocol):
    """For any thread."""

    def expect_can(self, view: str) -> None:
        """Raises ProofElsewhere with the reason and the next step for one that cannot be verified here, or not yet."""

    def verify(self, view: str, say: Say, count: Count) -> Report:
        """Waits until it is done. Raises CannotVerify, or what the log or the store says; what ``say`` and ``count``
        raise ends it.
        """

    def tasks(self) -> tuple[int, int] | None:
        """Of the proof under way, the tasks that Spark has done and has in all; None where it does none."""

    def stop_verifying(self) -> None:
        """So that whoever ends need not wait for it."""
