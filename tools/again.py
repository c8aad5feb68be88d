"""The few tests that failed in a whole run of all, once more, each in a quiet process.

On two cores, with three test processes, killed servers and Spark beside each other, a wait can run out that is long
enough otherwise. What fails alone as well is a failure. What passes alone is named here, beside the trace that is
printed above: it is still a finding, of the test or of the product, and is to be looked into.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tools.places import ROOT

__all__ = ["MOST", "main"]

MOST = 8
"""More than that is no accident."""


def main(path: Path) -> int:
    try:
        failed = json.loads(path.read_text())
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


def _passes(test: str) -> bool:
    print(f"once more, alone: {test}", flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", test], cwd=Path.cwd(), check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(ROOT / sys.argv[1]))
