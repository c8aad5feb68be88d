"""Results as JSON: one row per comparison with a peer, one row per fault.

A comparison is ``{"name", "peer", "us", "them", "unit", "ratio", "goal", "met"}``. ``ratio`` is how many times better
than the peer Headrace is, whatever the unit: 2 means twice the throughput, or half the memory. ``goal`` is a ratio too.
The unit determines the direction: for a rate more is better, for time and memory less is better. A row without a goal
documents a choice and has no verdict. If Headrace and the peer were measured in several alternating rounds, the figures
are medians, and ``spread`` contains the lowest and the highest ratio of a round.

A fault is ``{"fault", "held", "runs", "hits", "lost", "duplicated", "peak_rss_mb", "seeds", "caught_unprotected",
"failures", "commit", "date", "code", "covers"}``: the number of random runs, how often the fault hit its target,
how many records the independent oracle counted as lost or duplicated, and whether the same oracle caught a run without
the protection. ``failures`` has the failed seeds, each with its problems. ``commit`` is the checked-out commit.
``covers`` are the files and folders that the fault attacks, and ``code`` is their digest: when it changes, the row is
stale. Runs of different faults are merged into one file.

Every file is replaced as a whole by a rename, so that a killed benchmark leaves the previous results.
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
_COMPARISON_FIELDS = {"name": str, "peer": str, "us": float, "them": float, "unit": str, "goal": float}
_NO_GOAL = 1.0
"""A placeholder goal, which lets a row without a goal pass the check of its fields."""
_FAULT_FIELDS = {
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
    earlier: Iterable[Mapping[str, Any]] = (),
) -> Path:
    """Write ``<name>.json`` with ratios and verdicts, and return its path. ``earlier`` are rows of an earlier run.
    They are kept, in their order, unless this run has a row with the same name and peer.
    """
    new = {(row["name"], row["peer"]): row for row in map(comparison_row, _without_duplicates(name, rows))}
    kept = {(row["name"], row["peer"]): dict(row) for row in earlier}
    all_rows = list({**kept, **new}.values())
    if not new:
        raise ValueError(f"{name}: at least one row is required")
    path = folder / f"{name}.json"
    write_json(path, all_rows)
    return path


def earlier_rows(name: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the rows of ``<name>.json``, if it exists."""
    path = folder / f"{name}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return rows


def _without_duplicates(name: str, rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    all_rows = list(rows)
    names = [(row.get("name"), row.get("peer")) for row in all_rows]
    if len(set(names)) != len(names):
        raise ValueError(f"{name}: two rows have the same name and peer: {names}")
    return all_rows


def comparison_row(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the full row for figures of Headrace and of the peer from the same run. ``us`` and ``them`` are numbers,
    or lists with one number per round.
    """
    us_rounds, them_rounds = fields.get("us"), fields.get("them")
    if isinstance(us_rounds, list) and isinstance(them_rounds, list):
        if not us_rounds or len(us_rounds) != len(them_rounds):
            raise ValueError(
                f"{fields.get('name')}: both sides must have the same number of rounds, at least one"
            )
        row = comparison_row(
            {**fields, "us": statistics.median(us_rounds), "them": statistics.median(them_rounds)}
        )
        ratios = [
            comparison_row({**fields, "us": us, "them": them})["ratio"]
            for us, them in zip(us_rounds, them_rounds, strict=True)
        ]
        goal, met = row.pop("goal"), row.pop("met")
        return {**row, "spread": [min(ratios), max(ratios)], "goal": goal, "met": met}
    goal = fields.get("goal", _NO_GOAL)
    if goal is None:
        row = comparison_row({**fields, "goal": _NO_GOAL})
        return {**row, "goal": None, "met": None}
    _check_fields(fields, _COMPARISON_FIELDS)
    for field in ("us", "them", "goal"):
        if not (math.isfinite(fields[field]) and fields[field] > 0):
            raise ValueError(
                f"{fields['name']}: {field} must be a finite number above zero, not {fields[field]}"
            )
    us, them = fields["us"], fields["them"]
    ratio = us / them if _more_is_better(fields["unit"]) else them / us
    return {
        "name": fields["name"],
        "peer": fields["peer"],
        "us": _rounded(us),
        "them": _rounded(them),
        "unit": fields["unit"],
        "ratio": _rounded(ratio),
        "goal": goal,
        "met": ratio >= goal,
    }


def write_faults(rows: Iterable[Mapping[str, Any]], folder: Path = RESULTS) -> Path:
    """Merge the rows into ``faults.json``: the row of a fault is replaced, the others stay."""
    path = folder / "faults.json"
    # Earlier rows are checked too: an invalid row must raise an error instead of being lost.
    earlier = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    merged = {row["fault"]: row for row in map(fault_row, [*earlier, *rows])}
    write_json(path, sorted(merged.values(), key=lambda row: int(row["fault"][1:])))
    return path


def fault_row(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Check and return the row of one fault, whose name in the fault table is ``X`` and a number."""
    _check_fields(fields, _FAULT_FIELDS)
    name = fields["fault"]
    if not (name.startswith("X") and name[1:].isdigit()):
        raise ValueError(f"the name of a fault must be X and a number, not {name!r}")
    if fields["runs"] < 1 or any(
        fields[field] < 0 for field in ("hits", "lost", "duplicated", "peak_rss_mb")
    ):
        raise ValueError(f"{name}: at least one run and no negative figures are required: {dict(fields)}")
    if not fields["seeds"]:
        raise ValueError(f"{name}: the seeds are missing, so the runs cannot be repeated")
    if fields["held"] == bool(fields["failures"]):
        raise ValueError(f"{name}: held must be true if and only if failures is empty")
    if not fields["covers"]:
        raise ValueError(f"{name}: the covered code is missing, so the row could never become stale")
    row = {field: fields[field] for field in _FAULT_FIELDS}
    return {**row, "peak_rss_mb": _rounded(fields["peak_rss_mb"]), "seeds": sorted(set(fields["seeds"]))}


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def _check_fields(fields: Mapping[str, Any], types: Mapping[str, type]) -> None:
    if fields.keys() != types.keys():
        raise ValueError(f"a row must have the keys {', '.join(types)}, but has {', '.join(fields)}")
    for field, kind in types.items():
        value = fields[field]
        is_valid = isinstance(value, int | float) if kind is float else type(value) is kind
        if not is_valid or value == "":
            raise ValueError(f"{field} must be a non-empty {kind.__name__}, not {value!r}")


def _more_is_better(unit: str) -> bool:
    if unit in _LESS_IS_BETTER:
        return False
    if unit.endswith("/s"):
        return True
    raise ValueError(
        f"unit {unit!r} does not imply whether more is better: use a rate (…/s) or {sorted(_LESS_IS_BETTER)}"
    )


def _rounded(value: float) -> float:
    """Round to few digits, so that a diff of two results shows changes instead of noise. Whole numbers stay whole."""
    if float(value).is_integer():
        return int(value)
    return round(value, max(0, _DIGITS - 1 - math.floor(math.log10(abs(value)))))
