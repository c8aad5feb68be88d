"""The embedded broker, as a process of its own: started first, stopped last, and gone when we are."""

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
from headrace.private import private
from headrace.readable import readable
from headrace.settings import BrokerSettings

__all__ = ["BrokerChild", "BrokerFailed", "backup_environment", "backup_options"]

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
_PR_SET_PDEATHSIG = 1


class BrokerFailed(HeadraceError):
    code = "HR-RUN-BROKER"


def _end_with_parent() -> None:
    """So that no broker is left behind when its parent is killed; where the system cannot do it, it may be."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class BrokerChild:
    """``failure`` is the error that is raised when it does not start, or ends by itself."""

    def __init__(
        self,
        listen: str,
        data: Path,
        log: Path,
        *,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        failure: type[HeadraceError] = BrokerFailed,
    ) -> None:
        self._log = log
        self._failure = failure
        self._log_file: IO[bytes] = open(log, "wb", opener=private)  # noqa: SIM115  for as long as the broker runs
        start = [sys.executable, "-m", "headrace.cli", "broker"]
        command = [*start, "--listen", listen, "--data", str(data), *options]
        # In a session of its own: Ctrl-C is for the parent, which stops its clients first and the broker last.
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
            raise self._failure(
                f"the broker was not ready within {START_TIMEOUT_S:g} s", detail=self.last_words()
            )
        line = stdout.readline().decode("utf-8", "replace")
        _, found, rest = line.partition(" ready on ")
        if not found:
            self._process.wait(STOP_TIMEOUT_S)
            raise self._failure("the broker did not start", detail=self.last_words() or line.strip())
        return rest.split()[0]

    def last_words(self) -> str:
        self._log_file.flush()
        return "; ".join(self._log.read_text("utf-8", "replace").strip().splitlines()[-3:])

    def check_alive(self) -> None:
        code = self._process.poll()
        if code is not None:
            raise self._failure(f"the broker ended by itself with exit code {code}", detail=self.last_words())

    def rss_bytes(self) -> int | None:
        """Resident memory, where the system tells."""
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> int | None:
        """A clean stop; its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
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
    """Process lists show a command line, but not the environment."""
    return {} if broker.backup_key is None else {"HEADRACE_BROKER__BACKUP_KEY": broker.backup_key}
