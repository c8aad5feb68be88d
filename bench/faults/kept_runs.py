"""Runs that were made, one line of JSON each, in a local file: a soak can be made in pieces, and goes on after a kill.

    {"fault", "module", "seed", "without", "code", "outcome"}

``without`` is the protection that was taken out, or empty. ``code`` is the digest of the code that the fault covers: a
run counts for that code alone. A last line that a kill has left torn is cut off.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.faults.outcome import Outcome

__all__ = ["KEPT", "KeptRuns"]

KEPT = Path(__file__).resolve().parent.parent.parent / "build" / "soak.jsonl"
_PROBLEMS_MAX = 8
_PROBLEM_CHARS = 2_000


class KeptRuns:
    def __init__(self, path: Path = KEPT) -> None:
        self._path = path
        _cut_torn_line(path)
        self._found = {_key(line): Outcome(**line["outcome"]) for line in _lines(path)}

    def find(self, fault: str, module: str, seed: int, code: str, without: str = "") -> Outcome | None:
        return self._found.get((fault, module, seed, without, code))

    def keep(self, fault: str, module: str, code: str, outcome: Outcome, without: str = "") -> None:
        line = {
            "fault": fault,
            "module": module,
            "seed": outcome.seed,
            "without": without,
            "code": code,
            "outcome": {**asdict(outcome), "problems": _shortened(outcome.problems)},
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._found[_key(line)] = outcome

    def forget(self, fault: str) -> None:
        """All runs of the fault are to be made anew."""
        kept = [line for line in _lines(self._path) if line["fault"] != fault]
        self._found = {key: outcome for key, outcome in self._found.items() if key[0] != fault}
        if self._path.exists():
            fresh = self._path.with_suffix(".new")
            fresh.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
            fresh.replace(self._path)


def _key(line: dict[str, Any]) -> tuple[str, str, int, str, str]:
    return line["fault"], line["module"], line["seed"], line["without"], line["code"]


def _cut_torn_line(path: Path) -> None:
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _shortened(problems: list[str]) -> list[str]:
    return [problem[:_PROBLEM_CHARS] for problem in problems[:_PROBLEMS_MAX]]
