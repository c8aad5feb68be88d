"""Runs a command of the user for each alert that starts to fire or is resolved.

The command gets the alert's record as JSON on its standard input. No shell runs it. A few commands run at the same
time, and each has a time limit. The alert is in the log before its command starts, so a command runs at most once per
change: if the process is killed, or if too many commands wait, commands are not run. Failures are reported and counted,
and never delay the evaluation of rules.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import IO, Literal

import msgspec

from headrace.errors import ConfigError
from headrace.ops.alerts.alert_log import AlertRecord

__all__ = ["OUTCOMES", "AlertCommand", "CommandOutcome", "parse_command"]

CommandOutcome = Literal["ok", "failed", "timeout", "dropped"]
OUTCOMES: tuple[CommandOutcome, ...] = ("ok", "failed", "timeout", "dropped")
_CONCURRENT_MAX = 4
_WAITING_MAX = 100
_OUTPUT_BYTES_MAX = 2_000
"""How much of a failed command's error output is reported."""
_READ_BYTES = 65_536
_POLL_S = 0.05
_CLOSE_S = 5.0


def parse_command(text: str) -> list[str]:
    """Split the command into words as a shell does, but without expansions. Raise if it cannot be run."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"alerts.exec is not a command: {error}", hint="quote words like in a shell"
        ) from error
    if not words:
        raise ConfigError("alerts.exec is empty", hint="name a command, or remove the setting")
    if shutil.which(words[0]) is None:
        raise ConfigError(
            f"alerts.exec: command {words[0]!r} does not exist or is not executable",
            hint="use an absolute path; no shell runs the command",
        )
    return words


class AlertCommand:
    """``warn`` reports failures. ``submit`` never blocks."""

    def __init__(self, words: Sequence[str], timeout_s: float, warn: Callable[[str], None]) -> None:
        self.counts: Counter[CommandOutcome] = Counter()
        self._words = list(words)
        self._timeout_s = timeout_s
        self._warn = warn
        self._waiting: queue.Queue[AlertRecord | None] = queue.Queue(_WAITING_MAX)
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def submit(self, record: AlertRecord) -> None:
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._report(record, "dropped", f"{_WAITING_MAX} commands are waiting already")
            return
        if len(self._threads) < _CONCURRENT_MAX:
            thread = threading.Thread(target=self._work, name="alert command", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self, wait_s: float = _CLOSE_S) -> None:
        """Wait until the commands have ended, then end those that still run."""
        deadline = time.monotonic() + wait_s
        for _ in self._threads:
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=max(0.0, deadline - time.monotonic()))
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._closing.set()
        for thread in self._threads:
            thread.join(1.0)

    def _work(self) -> None:
        while (record := self._waiting.get()) is not None and not self._closing.is_set():
            try:
                outcome, detail = self._run(record)
            except OSError as error:
                outcome, detail = "failed", f"it could not be started: {error.strerror or error}"
            self._report(record, outcome, detail)

    def _report(self, record: AlertRecord, outcome: CommandOutcome, detail: str) -> None:
        with self._lock:
            self.counts[outcome] += 1
        if outcome != "ok":
            self._warn(f"the command for alert {record.alert} ({record.what} {record.name}) failed: {detail}")

    def _run(self, record: AlertRecord) -> tuple[CommandOutcome, str]:
        # A file instead of a pipe: a command that does not read its input cannot block this thread.
        with tempfile.TemporaryFile() as content:
            content.write(msgspec.json.encode(record) + b"\n")
            content.seek(0)
            process = subprocess.Popen(  # noqa: S603 - the user's own command, without a shell
                self._words,
                stdin=content,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        assert process.stderr is not None
        with process.stderr:
            output, has_ended = self._wait(process, process.stderr)
        if not has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if self._closing.is_set():
                return "timeout", "it was killed because the process stops"
            return "timeout", f"it did not end within {self._timeout_s:g} s and was killed"
        if process.returncode == 0:
            return "ok", ""
        text = output.decode("utf-8", "replace").strip()
        return "failed", f"exit code {process.returncode}" + (f": {text}" if text else "")

    def _wait(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> tuple[bytes, bool]:
        """Return the beginning of the error output, and whether the process has ended in time."""
        output, deadline = b"", time.monotonic() + self._timeout_s
        os.set_blocking(errors.fileno(), False)
        while True:
            has_ended = process.poll() is not None
            # Data that the process wrote before its end can still be in the pipe.
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(errors.fileno(), _READ_BYTES):
                    output = (output + chunk)[:_OUTPUT_BYTES_MAX]
            if has_ended or time.monotonic() >= deadline or self._closing.wait(_POLL_S):
                return output, has_ended
