"""What no file of the project may hold, and how long a file may be."""

from __future__ import annotations

import re

import pytest

from .tracked import ROOT, short, text_of, tracked_files

LINES_MAX = 450
# A file past the limit, with the reason why it is still one noun.
LONGER: dict[str, str] = {}

UNFINISHED = "an unfinished thought"
# Written in two halves where the whole would make this very file an offender.
OFFENDING = {
    "a package index or its files": r"\bpypi\.(?:org|io)\b|python" + r"hosted\.org|/simp" + r"le\b/?[\"'\s]",
    "a jar repository": r"repo1?\.maven\b|maven[./]apache\.org|/maven" + r"2\b|central\.son" + r"atype",
    "another registry": r"\bregistry\.(?:npmjs|yarnpkg|hub)",
    "a path of one machine": r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot|farm|ho" + r"me/\w+)/",
    "how the work was shared out": r"(?i)\bissue #?\d|\bsub-?ag"
    + r"ent\b|\b(?:mission|lessons|ecosystem|contracts)\.m"
    + "d",
    UNFINISHED: r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b",
}


@pytest.mark.parametrize("what", OFFENDING)
def test_no_file_names(what: str) -> None:
    """What others wrote, and is here as they publish it, may have thoughts of theirs."""
    pattern = re.compile(OFFENDING[what])
    ours_only = what == UNFINISHED
    found = [
        f"{short(path)}:{number}: {line.strip()[:120]}"
        for path in tracked_files()
        if not (ours_only and "vendor" in path.parts)
        for number, line in enumerate((text_of(path) or "").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found, f"{what} does not belong into the project:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a package index or its files", "--index-url https://py" + "pi.org"),
        ("a package index or its files", "https://mirror.example/simp" + "le/ "),
        ("a jar repository", "https://repo1.ma" + "ven.org/x"),
        ("another registry", "https://reg" + "istry.n" + "pmjs.o" + "rg"),
        ("a path of one machine", 'DATA = "/wo' + 'rk/main"'),
        ("a path of one machine", "cd /ho" + "me/jo/src"),
        ("how the work was shared out", "as iss" + "ue 3 asks"),
        ("how the work was shared out", "see less" + "ons.md"),
        ("an unfinished thought", "# TO" + "DO later"),
    ],
)
def test_an_offending_line_is_found(what: str, line: str) -> None:
    assert re.search(OFFENDING[what], line)


def test_no_file_is_longer_than_one_noun() -> None:
    long = {
        short(path): lines
        for path in tracked_files()
        if path.suffix == ".py" and (lines := len((text_of(path) or "").splitlines())) > LINES_MAX
    }
    assert set(long) <= set(LONGER), (
        f"past {LINES_MAX} lines: {long}; split it, or say in LONGER why it is one noun"
    )
    assert set(LONGER) <= set(long), "a file in LONGER is short again: take it out"


def test_every_module_begins_with_its_reason_to_be() -> None:
    silent = [
        short(path)
        for path in tracked_files()
        if path.suffix == ".py"
        and path.relative_to(ROOT).parts[0] in ("src", "tools", "bench")
        and (text := text_of(path))
        and not text.startswith(('"""', 'r"""'))
    ]
    assert not silent, f"no docstring: {silent}"


def test_what_the_first_screen_promises_is_there() -> None:
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
