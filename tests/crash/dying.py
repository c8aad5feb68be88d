"""A fault run that passes, raises an exception or aborts its own process, as a client library might."""

from __future__ import annotations

import os

from faults.outcome import Outcome


def run(seed: int, *, ending: str = "pass") -> Outcome:
    if ending == "raise":
        raise RuntimeError("unforeseen")
    if ending == "abort":
        os.abort()
    return Outcome("X99", seed, hits=1)
