"""Finds out whether the code that the runs of a fault cover has changed since those runs."""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import subprocess
import tokenize
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["UNKNOWN", "code_digest", "commit_of", "is_stale"]

ROOT = Path(__file__).resolve().parent.parent
UNKNOWN = "unknown"
_DIGEST_CHARS = 16
_IGNORED_SUFFIXES = {".so", ".pyc"}


def code_digest(covers: Sequence[str], root: Path = ROOT) -> str:
    """Return a digest of the names and contents of all files in these paths. A missing path changes the digest too.

    Comments, docstrings and blank lines of Python files do not count, because rewording them changes no behaviour.
    """
    digest = hashlib.sha256()
    for covered in sorted(covers):
        for path in _files(root / covered):
            content = path.read_bytes()
            if path.suffix == ".py":
                content = _without_comments(content.decode()).encode()
            digest.update(f"{path.relative_to(root)} {hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()[:_DIGEST_CHARS]


@functools.cache
def _without_comments(source: str) -> str:
    """Return the lines of code. They are copied from the source, so the result is the same for every Python version."""
    lines: list[str] = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[line - 1] = ""
    return "\n".join(code for line in lines if (code := line.rstrip()))


def _files(covered: Path) -> list[Path]:
    if covered.is_file():
        return [covered]
    files = sorted(path for path in covered.rglob("*") if path.is_file())
    return [
        path for path in files if path.suffix not in _IGNORED_SUFFIXES and "__pycache__" not in path.parts
    ]


def commit_of(covers: Sequence[str], root: Path = ROOT) -> str:
    """Return the checked-out commit, or ``UNKNOWN`` if one of these paths differs from it or Git is missing."""
    try:
        changed = _git(root, "status", "--porcelain", "--", *covers)
        return UNKNOWN if changed else _git(root, "rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def _git(root: Path, *arguments: str) -> str:
    completed = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return completed.stdout.strip()


def is_stale(row: Mapping[str, Any], root: Path = ROOT) -> bool:
    """Whether the code that a row of ``soak.json`` covers has changed since the runs, or was not committed then."""
    return bool(row["commit"] == UNKNOWN or row["code"] != code_digest(row["covers"], root))
