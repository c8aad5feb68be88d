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
    """Return the files that git tracks or would add; without git, all files except those that tools create."""
    return tuple(sorted(path for path in _known_to_git() or _files_on_disk() if path.is_file()))


def _known_to_git() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if shutil.which("git") is None:
        return []
    output = subprocess.run(command, capture_output=True, check=False).stdout
    return [ROOT / name.decode() for name in output.split(b"\0") if name]


def _files_on_disk() -> list[Path]:
    paths: list[Path] = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not _is_created_by_tools(name)]
        paths += [Path(folder) / name for name in names]
    return paths


def _is_created_by_tools(name: str) -> bool:
    hidden = name.startswith(".") and name != ".ci"
    return hidden or name in {"build", "dist", "data", "__pycache__"} or name.endswith(".egg-info")


def text_of(path: Path) -> str | None:
    """Return the file's text, or ``None`` if the file is binary."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
