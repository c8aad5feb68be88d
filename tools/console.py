"""Prints the output of the scripts, and runs other programs.

Each download or installation prints one line with the reason. A long step prints periodically that it is still running.
If a step fails, the script prints what failed, the output of the program and the next step, and exits.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["SetupError", "finish", "has_printed", "print_while_running", "run", "say"]

_OUTPUT_LINES_MAX = 25
_HEARTBEAT_S = 15.0


class SetupError(Exception):
    """A step failed. ``hint`` is the next step for the user."""

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint


_printed = threading.Event()


def say(what: str, why: str = "") -> None:
    _printed.set()
    print(f"  {what}" + (f": {why}" if why else ""), file=sys.stderr, flush=True)


def has_printed() -> bool:
    """Return whether any step printed a line. A step prints only if it has work to do."""
    return _printed.is_set()


def finish(error: SetupError) -> int:
    """Print the error, and return the exit code."""
    print(f"error: {error.message}", file=sys.stderr)
    for line in error.detail.splitlines():
        print(f"  | {line}", file=sys.stderr)
    if error.hint:
        print(f"next step: {error.hint}", file=sys.stderr)
    return 1


@contextlib.contextmanager
def print_while_running(what: str) -> Iterator[None]:
    """Print every 15 seconds that the step is still running, so that a slow step does not seem to hang."""
    done = threading.Event()
    began = time.monotonic()

    def beat() -> None:
        while not done.wait(_HEARTBEAT_S):
            say(f"... still {what} after {time.monotonic() - began:.0f} s")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def run(
    command: Sequence[str | Path],
    *,
    failing: str,
    hint: str,
    doing: str = "",
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a program without showing its output. If it fails, raise ``SetupError`` with the end of its output.

    ``failing`` is the message of the error. ``doing`` describes the step in the line that says that a slow step is
    still running.
    """
    environment = {**os.environ, **(env or {})}
    with tempfile.TemporaryFile() as output:
        try:
            with print_while_running(doing) if doing else contextlib.nullcontext():
                code = subprocess.run(
                    [str(part) for part in command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    check=False,
                ).returncode
        except OSError as error:
            raise SetupError(failing, detail=str(error), hint=hint) from error
        if code != 0:
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines()
            raise SetupError(failing, detail="\n".join(lines[-_OUTPUT_LINES_MAX:]), hint=hint)
