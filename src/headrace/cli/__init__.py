"""The command line: ``headrace topic list``, ``headrace broker`` and the rest; one verb per file.

``main`` is the way in. It keeps the long-running broker small: a well-formed ``headrace broker …`` line is
read without loading the machinery for help, completion and live displays.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["broker"]:
        from headrace.cli.broker_line import read_broker_line, run_broker_line

        line = read_broker_line(words[1:])
        if line is not None:
            return run_broker_line(line)
    from headrace.cli.app import run

    return run()
