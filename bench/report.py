"""Results as JSON: one row per comparison with a peer, one row per fault.

A comparison is ``{"name", "peer", "us", "them", "unit", "ratio", "goal", "met"}``. ``ratio`` says how many times better
than the peer we are, whatever the unit: 2 is twice the throughput, and also half the memory; ``goal`` is in the same
sense. The unit tells the direction: of a rate more is better, of time and memory less. A row without a goal shows
something that a choice was made by; it has no verdict either. Where both were measured in several rounds, turn by turn,
the figures are medians, and ``spread`` is the least and the greatest ratio of a round.

A fault is ``{"fault", "held", "runs", "hits", "lost", "duplicated", "peak_rss_mb", "seeds", "caught_unprotected",
"failures", "commit", "date", "code", "covers"}``: how many randomised runs, how often the fault struck where it aims,
what the independent oracle missed or saw twice, and whether the same oracle caught a run with the protection off.
``failures`` has the seeds that failed, each with its problems. ``commit`` is what was checked out, ``covers`` the files
and folders that the fault attacks, ``code`` their digest: when it changes, the row is stale. Runs of different faults
merge into one file.

Every file is replaced whole by a rename, so that a killed benchmark leaves the results of the last one.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "RESULTS",
    "comparison_row",
    "earlier_rows",
    "fault_row",
    "write_faults",
    "write_json",
    "write_results",
]

RESULTS = Path(__file__).resolve().parent / "results"

_LESS_IS_BETTER = {"us", "ms", "s", "KB", "MB", "GB", "CPU s"}
_DIGITS = 3
_GIVEN = {"name": str, "peer": str, "us": float, "them": float, "unit": str, "goal": float}
_NO_GOAL = 1.0
"""To have the shape of a row checked that has none."""
_FAULT = {
    "fault": str,
    "held": bool,
    "runs": int,
    "hits": int,
    "lost": int,
    "duplicated": int,
    "peak_rss_mb": float,
    "seeds": list,
    "caught_unprotected": bool,
    "failures": list,
    "commit": str,
    "date": str,
    "code": str,
    "covers": list,
}


def write_results(
    name: str,
    rows: Iterable[Mapping[str, Any]],
    folder: Path = RESULTS,
    *,
    beside: Iterable[Mapping[str, Any]] = (),
) -> Path:
    """Write ``<name>.json`` anew, with ratio and verdict worked out, and return its path. Rows ``beside`` are of an
    earlier run: each stays as it is, in its place, unless this one has a row of its name and peer.
    """
    fresh = {(row["name"], row["peer"]): row for row in map(comparison_row, _told_apart(name, rows))}
    kept = {(row["name"], row["peer"]): dict(row) for row in beside}
    listed = list({**kept, **fresh}.values())
    if not fresh:
        raise ValueError(f"{name}: at least one row")
    path = folder / f"{name}.json"
    write_json(path, listed)
    return path


def earlier_rows(name: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """What is in ``<name>.json``, if it is there."""
    path = folder / f"{name}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return found


def _told_apart(name: str, rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    listed = list(rows)
    names = [(row.get("name"), row.get("peer")) for row in listed]
    if len(set(names)) != len(names):
        raise ValueError(f"{name}: no two of one name and peer: {names}")
    return listed


def comparison_row(given: Mapping[str, Any]) -> dict[str, Any]:
    """The full row for one figure of ours beside the peer's, both measured in the same run: once, or as often as the
    lists are long that ``us`` and ``them`` then are.
    """
    us_rounds, them_rounds = given.get("us"), given.get("them")
    if isinstance(us_rounds, list) and isinstance(them_rounds, list):
        if not us_rounds or len(us_rounds) != len(them_rounds):
            raise ValueError(f"{given.get('name')}: as many rounds of ours as of theirs, at least one")
        row = comparison_row(
            {**given, "us": statistics.median(us_rounds), "them": statistics.median(them_rounds)}
        )
        ratios = [
            comparison_row({**given, "us": us, "them": them})["ratio"]
            for us, them in zip(us_rounds, them_rounds, strict=True)
        ]
        goal, met = row.pop("goal"), row.pop("met")
        return {**row, "spread": [min(ratios), max(ratios)], "goal": goal, "met": met}
    goal = given.get("goal", _NO_GOAL)
    if goal is None:
        row = comparison_row({**given, "goal": _NO_GOAL})
        return {**row, "goal": None, "met": None}
    _check_shape(given, _GIVEN)
    for field in ("us", "them", "goal"):
        if not (math.isfinite(given[field]) and given[field] > 0):
            raise ValueError(
                f"{given['name']}: {field} must be a finite number above zero, not {given[field]}"
            )
    us, them = given["us"], given["them"]
    ratio = us / them if _more_is_better(given["unit"]) else them / us
    return {
        "name": given["name"],
        "peer": given["peer"],
        "us": _rounded(us),
        "them": _rounded(them),
        "unit": given["unit"],
        "ratio": _rounded(ratio),
        "goal": goal,
        "met": ratio >= goal,
    }


def write_faults(rows: Iterable[Mapping[str, Any]], folder: Path = RESULTS) -> Path:
    """Merge into ``faults.json``: a fault's row is replaced, the others stay."""
    path = folder / "faults.json"
    # What an earlier run left must fit as well: an odd row is an error, not a loss.
    earlier = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    merged = {row["fault"]: row for row in map(fault_row, [*earlier, *rows])}
    write_json(path, sorted(merged.values(), key=lambda row: int(row["fault"][1:])))
    return path


def fault_row(given: Mapping[str, Any]) -> dict[str, Any]:
    """The checked row of one fault, which is named as in the fault table: ``X`` and a number."""
    _check_shape(given, _FAULT)
    name = given["fault"]
    if not (name.startswith("X") and name[1:].isdigit()):
        raise ValueError(f"a fault is named X and a number, not {name!r}")
    if given["runs"] < 1 or any(given[field] < 0 for field in ("hits", "lost", "duplicated", "peak_rss_mb")):
        raise ValueError(f"{name}: at least one run and no negative figure: {dict(given)}")
    if not given["seeds"]:
        raise ValueError(f"{name}: without its seeds a run cannot be repeated")
    if given["held"] == bool(given["failures"]):
        raise ValueError(f"{name}: a fault has held if and only if there are no failures")
    if not given["covers"]:
        raise ValueError(f"{name}: without the code that it covers nobody can tell its age")
    row = {field: given[field] for field in _FAULT}
    return {**row, "peak_rss_mb": _rounded(given["peak_rss_mb"]), "seeds": sorted(set(given["seeds"]))}


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


def _check_shape(given: Mapping[str, Any], shape: Mapping[str, type]) -> None:
    if given.keys() != shape.keys():
        raise ValueError(f"a row has the keys {', '.join(shape)}; found {', '.join(given)}")
    for field, kind in shape.items():
        value = given[field]
        fits = isinstance(value, int | float) if kind is float else type(value) is kind
        if not fits or value == "":
            raise ValueError(f"{field} must be a {kind.__name__} that says something, not {value!r}")


def _more_is_better(unit: str) -> bool:
    if unit in _LESS_IS_BETTER:
        return False
    if unit.endswith("/s"):
        return True
    raise ValueError(
        f"unit {unit!r} does not tell whether more is better: use a rate (…/s) or {sorted(_LESS_IS_BETTER)}"
    )


def _rounded(value: float) -> float:
    """Few digits, so that a diff of two results shows changes rather than noise; whole numbers stay whole."""
    if float(value).is_integer():
        return int(value)
    return round(value, max(0, _DIGITS - 1 - math.floor(math.log10(abs(value)))))
