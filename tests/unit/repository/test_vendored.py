"""The vendored files of the page are exactly those of its list, each with its licence."""

from __future__ import annotations

import hashlib
import re

from .tracked import ROOT, short, tracked_files

FOLDER = ROOT / "src/headrace/serve/page/files/vendor"
OURS = {"README.md", "ui.js"}


def _rows() -> dict[str, list[str]]:
    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0]: row for row in cells[1:]}


def test_every_vendored_file_has_the_listed_hash() -> None:
    hashes = {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in _rows()}
    assert hashes == {name: row[-1] for name, row in _rows().items()}


def test_every_vendored_file_is_in_the_list_with_its_version_and_licence() -> None:
    rows = _rows()
    licences = {match[1] for row in rows.values() if (match := re.search(r"\((.+\.LICENSE)\)", row[3]))}
    tracked = {path.name for path in tracked_files() if short(path).startswith(short(FOLDER))}
    assert tracked - OURS == {*rows, *licences}
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", row[2]) for row in rows.values())
