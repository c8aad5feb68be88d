"""Paths for the scripts: the clone and its virtual environment."""

from __future__ import annotations

from pathlib import Path

from headrace.flow.spark.jars import cache_dir

__all__ = ["ROOT", "VENV", "VENV_PYTHON", "cache_dir"]

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
