"""Where the scripts keep things: the clone itself, its virtual environment, and a cache that clones share."""

from __future__ import annotations

from pathlib import Path

from headrace.flow.cache import cache_dir

__all__ = ["ROOT", "VENV", "VENV_PYTHON", "cache_dir"]

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
