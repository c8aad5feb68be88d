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
            code = run_broker_line(line)
            _leave(code)
            return code
    from headrace.cli.app import run

    try:
        return run()
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            _leave(leaving.code or 0)
        raise


def _leave(code: int) -> None:
    """End at once where threads of a Kafka client, or of a bucket that hangs, would be waited for, or go on while the
    interpreter is taken apart under them.
    """
    if not {"confluent_kafka", "pyarrow._s3fs"} & sys.modules.keys():
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    os._exit(code)
