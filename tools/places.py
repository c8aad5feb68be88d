"""Where the scripts keep things: the clone itself, its virtual environment, and a cache that clones share.

The cache holds only what can be fetched again and is checked by hash before use, so it is safe to delete at any time.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ROOT", "VENV", "VENV_PYTHON", "cache_dir"]

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"


def cache_dir() -> Path:
    """``HEADRACE_CACHE``, else the user's cache directory, else the clone when there is no home that can be written."""
    given = os.environ.get("HEADRACE_CACHE")
    if given:
        return Path(given).expanduser().resolve()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    nearest = next((parent for parent in (base, *base.parents) if parent.exists()), base)
    if base.is_absolute() and nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return base / "headrace"
    return ROOT / ".cache"
