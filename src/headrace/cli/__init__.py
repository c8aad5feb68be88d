"""The command line: ``headrace topic list``, ``headrace broker`` and so on; one module or package per command.

``main`` is the entry point. To save memory in the long-running broker, ``main`` parses a valid ``headrace broker …``
command without importing the code for help, completion and live displays.
"""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["broker"]:
        from headrace.cli.broker_args import parse_broker_args, run_broker_args

        args = parse_broker_args(arguments[1:])
        if args is not None:
            code = run_broker_args(args)
            _exit_at_once(code)
            return code
    from headrace.cli.root import run

    try:
        return run()
    except SystemExit as system_exit:
        if system_exit.code is None or isinstance(system_exit.code, int):
            _exit_at_once(system_exit.code or 0)
        raise


def _exit_at_once(code: int) -> None:
    """Skip Python's own exit if a Kafka or S3 client was loaded. Python's exit would wait for the client's threads, or
    shut down the interpreter while the threads run.
    """
    if not {"confluent_kafka", "pyarrow._s3fs"} & sys.modules.keys():
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    os._exit(code)
