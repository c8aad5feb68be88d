"""Stores finished runs in a local file, one line of JSON each, so that a soak can be interrupted and resumed.

    {"fault", "module", "seed", "without", "code", "outcome"}

``without`` is the removed protection, or empty. ``code`` is the digest of the code that the fault covers; a run counts
only for that code. A kill can leave a torn last line, which the next start removes.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults.outcome import Outcome

__all__ = ["SAVED_RUNS", "SavedRuns"]

SAVED_RUNS = Path(__file__).resolve().parent.parent / "build" / "soak.jsonl"
_PROBLEMS_MAX = 8
_PROBLEM_CHARS = 2_000


class SavedRuns:
    def __init__(self, path: Path = SAVED_RUNS) -> None:
        self._path = path
        _cut_torn_line(path)
        self._outcomes = {_key(line): Outcome(**line["outcome"]) for line in _lines(path)}

    def find(self, fault: str, module: str, seed: int, code: str, without: str = "") -> Outcome | None:
        return self._outcomes.get((fault, module, seed, without, code))

    def add(self, fault: str, module: str, code: str, outcome: Outcome, without: str = "") -> None:
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
        self._outcomes[_key(line)] = outcome

    def remove(self, fault: str) -> None:
        lines = [line for line in _lines(self._path) if line["fault"] != fault]
        self._outcomes = {key: outcome for key, outcome in self._outcomes.items() if key[0] != fault}
        if self._path.exists():
            fresh = self._path.with_suffix(".new")
            fresh.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
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
