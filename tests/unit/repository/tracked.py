"""The files that belong to the project."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


@cache
def tracked_files() -> tuple[Path, ...]:
    """What git has or would add; in a copy without git, everything but what tools leave behind."""
    return tuple(sorted(path for path in _known_to_git() or _walked() if path.is_file()))


def _known_to_git() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if shutil.which("git") is None:
        return []
    listed = subprocess.run(command, capture_output=True, check=False).stdout
    return [ROOT / name.decode() for name in listed.split(b"\0") if name]


def _walked() -> list[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not _left_by_tools(name)]
        found += [Path(folder) / name for name in names]
    return found


def _left_by_tools(name: str) -> bool:
    hidden = name.startswith(".") and name != ".ci"
    return hidden or name in {"build", "dist", "data", "__pycache__"} or name.endswith(".egg-info")


def text_of(path: Path) -> str | None:
    """The file's text, or ``None`` when it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
