"""The results of benchmarks and fault runs as tables in the documentation, each between two marks of its page.

    python -m bench.pages

``make soak`` and the benchmarks of the log, of flows, of the server and of the page do it at their end; a test sees to
it that pages and results agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.faults import FAULTS
from bench.faults.covered import is_stale
from bench.report import RESULTS, earlier_rows

__all__ = ["PAGES", "main", "rendered"]

_COMMIT_DIGITS = 12
_DOCS = RESULTS.parent.parent / "docs"
PAGES = {_DOCS / "performance.md": ("log", "flow", "serve", "page"), _DOCS / "faults.md": ("faults",)}


def rendered(page: Path, results: Path = RESULTS) -> str:
    """The text of the page with its tables as they must be."""
    text = page.read_text(encoding="utf-8")
    for name in PAGES[page]:
        rows = earlier_rows(name, results)
        table = _faults(rows) if name == "faults" else _comparisons(rows)
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise ValueError(f"{page.name} must have the lines {begin!r} and {end!r}, one after the other")
        text = f"{before}{begin}\n{table}\n{end}{after}"
    return text


def _comparisons(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table for each peer, in the order of the results."""
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
        head = ("What", "Headrace", "Beside it", "Times as good", "Goal", "")
        parts.append(f"Beside: {peer}\n\n{_table(head, lines)}")
    return "\n".join(parts)


def _faults(rows: Sequence[Mapping[str, Any]]) -> str:
    head = (
        *("No.", "Result", "Runs", "Hits", "Lost", "Doubled", "Most memory", "Caught without the protection"),
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
    """A stale row does not count, whatever it says."""
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
    listed = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in listed)


def main() -> None:
    for page in PAGES:
        page.write_text(rendered(page), encoding="utf-8")


if __name__ == "__main__":
    main()
