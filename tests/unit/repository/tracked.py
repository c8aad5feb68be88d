"""The files that belong to the project."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_LEFT_BY_TOOLS = {"build", "dist", "data", "__pycache__"}


@cache
def tracked_files() -> tuple[Path, ...]:
    """What git has or would add; in a copy without git, everything but what tools leave behind."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        files = [ROOT / name.decode() for name in listed.stdout.split(b"\0") if name]
    else:
        files = [path for path in ROOT.rglob("*") if not _left_by_tools(path.relative_to(ROOT))]
    return tuple(sorted(path for path in files if path.is_file()))


def text_of(path: Path) -> str | None:
    """The file's text, or ``None`` when it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _left_by_tools(path: Path) -> bool:
    hidden = any(part.startswith(".") and part not in {".ci", ".gitignore"} for part in path.parts)
    return hidden or any(part in _LEFT_BY_TOOLS or part.endswith(".egg-info") for part in path.parts)
