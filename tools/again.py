"""The few tests that failed in a whole run of all, once more, each in a quiet process.

On two cores, with three test processes, killed servers and Spark beside each other, a wait can run out that is long
enough otherwise. What fails alone as well is a failure. What passes alone is named here, beside the trace that is
printed above: it is still a finding, of the test or of the product, and is to be looked into.

Where a test process was lost, what had not run by then is run first, the test in which it was lost among it. A second
lost process ends it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

from tools.places import ROOT

__all__ = ["MOST", "main"]

MOST = 8
"""More than that is no accident."""


class Failed(TypedDict):
    failed: list[str]
    left: list[str]


def main(path: Path, more: list[str]) -> int:
    try:
        told = _read(path)
        failed = told["failed"]
        if told["left"]:
            failed = [*failed, *_failed_of(told["left"], path, more)]
    except FileNotFoundError:
        print("error: the tests did not run to their end, so none is run again", file=sys.stderr)
        return 1
    if len(failed) > MOST:
        print(f"error: {len(failed)} tests failed; no more than {MOST} are run again", file=sys.stderr)
        return 1
    twice = [one for one in failed if not _passes(one)]
    for one in failed:
        print(f"{'failed twice' if one in twice else 'unsteady, passed alone'}: {one}", flush=True)
    return 1 if twice else 0


def _read(path: Path) -> Failed:
    told: Failed = json.loads(path.read_text())
    return told


def _failed_of(left: list[str], path: Path, more: list[str]) -> list[str]:
    print(f"a test process was lost; {len(left)} tests that had not run by then are run now", flush=True)
    names, failed = path.with_suffix(".left.txt"), path.with_suffix(".left.json")
    names.write_text("".join(f"{one}\n" for one in left))
    if _pytest(f"@{names}", "--failed-list", str(failed), *more):
        return []
    told = _read(failed)
    if told["left"]:
        raise FileNotFoundError
    return told["failed"]


def _passes(test: str) -> bool:
    print(f"once more, alone: {test}", flush=True)
    return _pytest(test)


def _pytest(*words: str) -> bool:
    return (
        subprocess.run([sys.executable, "-m", "pytest", *words], cwd=Path.cwd(), check=False).returncode == 0
    )


if __name__ == "__main__":
    sys.exit(main(ROOT / sys.argv[1], sys.argv[2:]))
