"""What the scripts say, and how they run other programs.

One line per thing fetched or installed: what, and why. A step that takes long shows that it is alive. A step that fails
ends everything with what happened, what the program said, and the next step for the person at the keyboard.
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

__all__ = ["SetupError", "finish", "has_said_anything", "run", "say", "still_at_it"]

_SAID_LINES_MAX = 25
_HEARTBEAT_S = 15.0


class SetupError(Exception):
    """A step that could not be done; ``hint`` is what the person can do about it."""

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint


_said = threading.Event()


def say(what: str, why: str = "") -> None:
    _said.set()
    print(f"  {what}" + (f": {why}" if why else ""), file=sys.stderr, flush=True)


def has_said_anything() -> bool:
    """Whether there was anything to do."""
    return _said.is_set()


def finish(error: SetupError) -> int:
    """Print the error for a person and return the exit code."""
    print(f"error: {error.message}", file=sys.stderr)
    for line in error.detail.splitlines():
        print(f"  | {line}", file=sys.stderr)
    if error.hint:
        print(f"next step: {error.hint}", file=sys.stderr)
    return 1


@contextlib.contextmanager
def still_at_it(what: str) -> Iterator[None]:
    """Say every few seconds that the step is still running, so that a slow network does not look like a hang."""
    done = threading.Event()
    began = time.monotonic()

    def beat() -> None:
        while not done.wait(_HEARTBEAT_S):
            say(f"... still {what}, {time.monotonic() - began:.0f} s so far")

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
    """Run a program quietly; when it fails, raise with the end of what it said."""
    environment = {**os.environ, **(env or {})}
    with tempfile.TemporaryFile() as said:
        try:
            with still_at_it(doing) if doing else contextlib.nullcontext():
                code = subprocess.run(
                    [str(part) for part in command],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    check=False,
                ).returncode
        except OSError as error:
            raise SetupError(failing, detail=str(error), hint=hint) from error
        if code != 0:
            said.seek(0)
            lines = said.read().decode(errors="replace").splitlines()
            raise SetupError(failing, detail="\n".join(lines[-_SAID_LINES_MAX:]), hint=hint)
