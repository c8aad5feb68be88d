"""Runs the embedded broker as a child process. It starts first, stops last, and ends if its parent dies."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from headrace.errors import HeadraceError
from headrace.files import private, readable
from headrace.settings import BrokerSettings

__all__ = ["BrokerChild", "BrokerFailed", "backup_environment", "backup_options"]

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
_PR_SET_PDEATHSIG = 1


class BrokerFailed(HeadraceError):
    code = "HR-RUN-BROKER"


def _end_with_parent() -> None:
    """Make Linux stop the broker when its parent is killed. Other systems can leave the broker running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class BrokerChild:
    def __init__(
        self,
        listen: str,
        data: Path,
        log: Path,
        *,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        self._log_file: IO[bytes] = open(log, "wb", opener=private)  # noqa: SIM115  for as long as the broker runs
        program = [sys.executable, "-m", "headrace.cli", "broker"]
        command = [*program, "--listen", listen, "--data", str(data), *options]
        # A session of its own, so that Ctrl-C reaches only the parent, which stops the broker's clients first.
        self._process = subprocess.Popen(  # noqa: S603  our own command
            command,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        try:
            self.address = self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        if not readable(stdout.fileno(), START_TIMEOUT_S):
            raise BrokerFailed(
                f"the broker was not ready within {START_TIMEOUT_S:g} s", detail=self._log_tail()
            )
        line = stdout.readline().decode("utf-8", "replace")
        _, separator, rest = line.partition(" ready on ")
        if not separator:
            self._process.wait(STOP_TIMEOUT_S)
            raise BrokerFailed("the broker did not start", detail=self._log_tail() or line.strip())
        return rest.split()[0]

    def _log_tail(self) -> str:
        self._log_file.flush()
        return "; ".join(self._log.read_text("utf-8", "replace").strip().splitlines()[-3:])

    def check_alive(self) -> None:
        code = self._process.poll()
        if code is not None:
            raise BrokerFailed(f"the broker exited with code {code}", detail=self._log_tail())

    def kill(self) -> None:
        """Kill the broker at once. It loses no acknowledged record."""
        self._process.kill()

    def stop(self, patience_s: float = STOP_TIMEOUT_S) -> int | None:
        """Stop the broker cleanly, or kill it after ``patience_s``. Returns its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log_file.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return self._process.returncode


def backup_options(broker: BrokerSettings) -> list[str]:
    if broker.backup is None:
        return []
    return [
        *("--backup", str(broker.backup)),
        *("--backup-every-ms", str(broker.backup_every_ms)),
        *("--backup-keep-s", str(broker.backup_keep_s)),
        *(("--backup-key-file", str(broker.backup_key_file)) if broker.backup_key_file else ()),
    ]


def backup_environment(broker: BrokerSettings) -> dict[str, str]:
    """Pass the key in the environment, because process lists show the command line."""
    return {} if broker.backup_key is None else {"HEADRACE_BROKER__BACKUP_KEY": broker.backup_key}
