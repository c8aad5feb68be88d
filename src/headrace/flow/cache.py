"""Where things are kept that can be fetched or made again: jars, and Spark's class archive.

What is there is checked before use, so the folder is safe to delete at any time.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_dir"]


def cache_dir() -> Path:
    """``HEADRACE_CACHE``, else ``headrace`` in the user's cache directory."""
    given = os.environ.get("HEADRACE_CACHE")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # A relative one is to be ignored, says the specification that names the variable.
    return (Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()) / "headrace"
