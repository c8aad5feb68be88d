"""Runs the ``headrace`` command for tests.

A short command spends most of its time on Python's start and imports. ``Headrace.run`` avoids this: it forks a process
that has already imported all modules, which is twenty times as fast. The arguments, file descriptors and exit code are
real. Tests that depend on the start of the process (help, signals, terminals, pipes) run the installed script with
``Headrace.started`` or ``Headrace.call``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["COMMAND", "Headrace", "Result"]

COMMAND = Path(sys.executable).parent / "headrace"
TIMEOUT_S = 240
_PRELOADED = ["__main__", "tests.cli.preloaded"]
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(_PRELOADED)


@dataclass(frozen=True)
class Result:
    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> list[Any]:
        """Parse every line of the output as JSON."""
        return [json.loads(line) for line in self.lines]


def _child(words: list[str], environment: dict[str, str], directory: str) -> None:
    from headrace.cli import main

    for number, name in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(f"{directory}/{name}", flags, 0o600), number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["headrace", *words]
    code: Any = 70
    try:
        code = main()
    except SystemExit as system_exit:
        code = system_exit.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


class Headrace:
    """The command ``headrace`` with the address of a broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        variables = {name: value for name, value in os.environ.items() if "HEADRACE" not in name}
        for name in ("NO_COLOR", "KAFKA_BOOTSTRAP_SERVERS", "COLUMNS"):
            variables.pop(name, None)
        return {**variables, "HEADRACE_BOOTSTRAP_SERVERS": self.bootstrap, "TERM": "xterm", **(extra or {})}

    def run(self, *words: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Result:
        with tempfile.TemporaryDirectory(prefix="headrace-cli-") as directory:
            folder = Path(directory)
            (folder / "stdin").write_bytes(stdin)
            process = _context.Process(target=_child, args=(list(words), self.environment(env), directory))
            process.start()
            process.join(TIMEOUT_S)
            if process.exitcode is None:
                process.kill()
                process.join()
                raise AssertionError(f"headrace {' '.join(words)} did not end within {TIMEOUT_S} s")
            out, err = ((folder / name).read_bytes() for name in ("stdout", "stderr"))
            return Result(process.exitcode, out, err.decode())

    def ok(self, *words: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Result:
        """Run the command, and expect exit code 0."""
        result = self.run(*words, stdin=stdin, env=env)
        assert result.code == 0, f"headrace {' '.join(words)}: exit {result.code}\n{result.err}"
        return result

    @contextmanager
    def started(
        self, *words: str, env: Mapping[str, str] | None = None, **options: Any
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start the installed script as a process; end it at the end of the block."""
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        }
        with subprocess.Popen([COMMAND, *words], env=self.environment(env), **options) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def call(self, *words: str, env: Mapping[str, str] | None = None, stdin: bytes = b"") -> Result:
        """Run the installed script to its end."""
        done = subprocess.run(
            [COMMAND, *words], env=self.environment(env), input=stdin, capture_output=True, timeout=TIMEOUT_S
        )
        return Result(done.returncode, done.stdout, done.stderr.decode())
