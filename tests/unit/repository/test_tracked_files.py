"""Patterns that no file of the project may contain, and the maximum length of files."""

from __future__ import annotations

import re

import pytest

from .tracked import ROOT, short, text_of, tracked_files

LINES_MAX = 450
# Longer files, each with the reason why it is one concept.
LONGER: dict[str, str] = {}

UNFINISHED = "an unfinished thought"
# Some patterns are split in two, so that this file does not match them.
FORBIDDEN = {
    "a package index or its files": r"\bpypi\.(?:org|io)\b|python" + r"hosted\.org|/simp" + r"le\b/?[\"'\s]",
    "a jar repository": r"repo1?\.maven\b|maven[./]apache\.org|/maven" + r"2\b|central\.son" + r"atype",
    "another registry": r"\bregistry\.(?:npmjs|yarnpkg|hub)",
    "a machine-specific absolute path": r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot|farm|ho" + r"me/\w+)/",
    "a reference to the development process": r"(?i)\bissue #?\d|\bsub-?ag"
    + r"ent\b|\b(?:mission|lessons|ecosystem|contracts)\.m"
    + "d",
    UNFINISHED: r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b",
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_no_tracked_file_contains_a_forbidden_pattern(kind: str) -> None:
    """Only vendored files, which stay as published, may contain notes about unfinished work."""
    pattern = re.compile(FORBIDDEN[kind])
    ours_only = kind == UNFINISHED
    matches = [
        f"{short(path)}:{number}: {line.strip()[:120]}"
        for path in tracked_files()
        if not (ours_only and "vendor" in path.parts)
        for number, line in enumerate((text_of(path) or "").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not matches, f"tracked files must not contain {kind}:\n" + "\n".join(matches)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("a package index or its files", "--index-url https://py" + "pi.org"),
        ("a package index or its files", "https://mirror.example/simp" + "le/ "),
        ("a jar repository", "https://repo1.ma" + "ven.org/x"),
        ("another registry", "https://reg" + "istry.n" + "pmjs.o" + "rg"),
        ("a machine-specific absolute path", 'DATA = "/wo' + 'rk/main"'),
        ("a machine-specific absolute path", "cd /ho" + "me/jo/src"),
        ("a reference to the development process", "as iss" + "ue 3 asks"),
        ("a reference to the development process", "see less" + "ons.md"),
        ("an unfinished thought", "# TO" + "DO later"),
    ],
)
def test_a_line_with_a_forbidden_pattern_is_detected(kind: str, line: str) -> None:
    assert re.search(FORBIDDEN[kind], line)


def test_no_file_is_too_long() -> None:
    long = {
        short(path): lines
        for path in tracked_files()
        if path.suffix == ".py" and (lines := len((text_of(path) or "").splitlines())) > LINES_MAX
    }
    assert set(long) <= set(LONGER), (
        f"past {LINES_MAX} lines: {long}; split it, or add it to LONGER with the reason why it is one concept"
    )
    assert set(LONGER) <= set(long), "remove files that are short again from LONGER"


def test_every_module_begins_with_a_docstring() -> None:
    without_docstring = [
        short(path)
        for path in tracked_files()
        if path.suffix == ".py"
        and path.relative_to(ROOT).parts[0] in ("src", "tools", "bench", "faults")
        and (text := text_of(path))
        and not text.startswith(('"""', 'r"""'))
    ]
    assert not without_docstring, f"no docstring: {without_docstring}"


def test_the_files_that_a_newcomer_expects_exist() -> None:
    expected = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        ".ci/run",
        "docs/capabilities.md",
    ]
    assert [name for name in expected if not (ROOT / name).is_file()] == []
