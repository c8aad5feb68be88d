"""The command line: ``headrace topic list``, ``headrace broker`` and the rest; one verb per file.

``main`` is the way in. It keeps the long-running broker small: a well-formed ``headrace broker …`` line is
read without loading the machinery for help, completion and live displays.
"""

from __future__ import annotations

import os
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

    try:
        return run()
    except SystemExit as leaving:
        _leave(leaving)
        raise


def _leave(leaving: SystemExit) -> None:
    """End at once where a Kafka client's threads would go on while the interpreter is taken apart under them."""
    if "confluent_kafka" in sys.modules and (leaving.code is None or isinstance(leaving.code, int)):
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            return
        os._exit(leaving.code or 0)
