"""Runs that end their own process: stand-ins for a client library that does."""

from __future__ import annotations

import os
from pathlib import Path

from bench.faults.outcome import Outcome


def run(seed: int, *, marks: str, deaths: int, raises: bool = False) -> Outcome:
    """Dies as long as fewer than ``deaths`` runs with these marks did."""
    if raises:
        raise RuntimeError("unforeseen")
    died = Path(marks)
    so_far = len(list(died.iterdir()))
    if so_far < deaths:
        (died / str(so_far)).touch()
        os.abort()
    return Outcome("X99", seed, hits=1)
