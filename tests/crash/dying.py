"""Runs that end their own process: stand-ins for a client library that does."""

from __future__ import annotations

import os

from bench.faults.outcome import Outcome


def run(seed: int, *, how: str = "hold") -> Outcome:
    if how == "raise":
        raise RuntimeError("unforeseen")
    if how == "die":
        os.abort()
    return Outcome("X99", seed, hits=1)
