"""Where the scripts keep things: the clone itself, its virtual environment, and a cache that clones share."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.flow import cache

__all__ = ["ROOT", "VENV", "VENV_PYTHON", "cache_dir"]

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"


def cache_dir() -> Path:
    """The product's, or the clone when there is no home that can be written."""
    shared = cache.cache_dir()
    nearest = next((parent for parent in (shared, *shared.parents) if parent.exists()), shared)
    if os.environ.get("HEADRACE_CACHE") or (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        return shared
    return ROOT / ".cache"
