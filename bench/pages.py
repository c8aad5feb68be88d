"""Writes the results of benchmarks and fault runs into the documentation, as a table between two markers on a page.

    python -m bench.pages

``make soak`` and every ``make bench-*`` run it at the end. A test checks that pages and results agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.capacity import render_capacity
from bench.report import RESULTS, earlier_rows
from faults import FAULTS
from faults.covered_code import is_stale

__all__ = ["PAGES", "main", "render"]

_COMMIT_DIGITS = 12
_DOCS = RESULTS.parent.parent / "docs"
PAGES = {
    _DOCS / "performance.md": ("log", "flow", "serve", "page"),
    _DOCS / "capacity.md": ("capacity", "example"),
    _DOCS / "faults.md": ("faults",),
}


def render(page: Path, results: Path = RESULTS) -> str:
    """Return the text of the page with the tables of the results."""
    text = page.read_text(encoding="utf-8")
    for name in PAGES[page]:
        table = _part(name, results)
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
        before, begin_marker, rest = text.partition(begin)
        _, end_marker, after = rest.partition(end)
        if not (begin_marker and end_marker):
            raise ValueError(f"{page.name} must have the lines {begin!r} and {end!r}, one after the other")
        text = f"{before}{begin}\n{table}\n{end}{after}"
    return text


def _part(name: str, results: Path) -> str:
    capacity = dict(render_capacity(results))
    if name in capacity:
        return capacity[name]
    rows = earlier_rows(name, results)
    return _faults(rows) if name == "faults" else _comparisons(rows)


def _comparisons(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one table per peer, in the order of the results."""
    if not rows:
        return "Not measured yet.\n"
    parts = []
    for peer in dict.fromkeys(row["peer"] for row in rows):
        lines = [
            (
                row["name"],
                _figure(row["us"], row["unit"]),
                _figure(row["them"], row["unit"]),
                _ratio(row),
                "" if row["goal"] is None else f"{row['goal']:g}",
                "missed" if row["met"] is False else "",
            )
            for row in rows
            if row["peer"] == peer
        ]
        head = ("What", "Headrace", "Peer", "Times better", "Goal", "")
        parts.append(f"Compared with: {peer}\n\n{_table(head, lines)}")
    return "\n".join(parts)


def _faults(rows: Sequence[Mapping[str, Any]]) -> str:
    head = (
        *(
            "No.",
            "Result",
            "Runs",
            "Hits",
            "Lost",
            "Duplicated",
            "Peak memory",
            "Detected with the protection disabled",
        ),
        *("Commit", "Date"),
    )
    counted = {row["fault"] for row in rows}
    missing = [name for name in FAULTS if name.startswith("X") and name not in counted]
    table = _table(
        head,
        [
            (
                row["fault"],
                _result(row),
                f"{row['runs']:,}",
                f"{row['hits']:,}",
                f"{row['lost']:,}",
                f"{row['duplicated']:,}",
                f"{row['peak_rss_mb']:g} MB" if row["peak_rss_mb"] else "simulated",
                "yes" if row["caught_unprotected"] else "NO",
                row["commit"][:_COMMIT_DIGITS],
                row["date"],
            )
            for row in rows
        ],
    )
    return table + (f"\nNot counted yet: {', '.join(missing)}.\n" if missing else "")


def _result(row: Mapping[str, Any]) -> str:
    """A stale row does not count, whatever its result is."""
    if is_stale(row):
        return "stale"
    failed = ", ".join(str(failure["seed"]) for failure in row["failures"] if failure["seed"])
    return "held" if row["held"] else f"FAILED{f' (seeds {failed})' if failed else ''}"


def _figure(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if abs(value) >= 1_000 else f"{value:g} {unit}"


def _ratio(row: Mapping[str, Any]) -> str:
    spread = row.get("spread")
    return f"{row['ratio']:g}" + (f" ({spread[0]:g} to {spread[1]:g})" if spread else "")


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in rows)


def main() -> None:
    for page in PAGES:
        page.write_text(render(page), encoding="utf-8")


if __name__ == "__main__":
    main()
