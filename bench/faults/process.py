"""A broker under attack: a process of its own, on one port and one data directory through all its restarts.

The port is held by a socket that never listens, so that no other program is given it, and no client connects to
itself through it, while the broker is down. The process is in a session of its own and dies with the one who
started it: nothing is left behind by a failed test.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.faults.forking import ROOT, Forked, dying_with_us, fork_server
from bench.process_tree import rss_mb
from headrace.readable import readable

__all__ = ["BrokerDied", "BrokerProcess"]

COMMAND = Path(sys.executable).parent / "headrace"
_READY = b"ready on"
_START_S_MAX = 240.0
_STOP_S_MAX = 120.0
_PAUSE_S = 0.001


class BrokerDied(AssertionError):
    """The broker ended, or did not come up, where nobody had killed it."""


class BrokerProcess:
    """``home`` holds the data directory ``data`` and all that the broker printed, in ``broker.log``.

    It is the command that users run, unless there are ``starter`` options: then ``bench.faults.starter`` starts it, and
    may leave a protection out or set what the command line has no option for. ``forked`` saves the imports of each
    start.
    """

    def __init__(
        self,
        home: Path,
        *,
        options: Sequence[str] = (),
        starter: Sequence[str] = (),
        data: Path | None = None,
        forked: bool = False,
        retention_check_ms: int | None = None,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.data = data or home / "data"
        self.log = home / "broker.log"
        self.peak_rss_mb = 0.0
        self.options = list(options)
        if retention_check_ms is not None:
            self.options += ["--set", f"log.retention.check.interval.ms={retention_check_ms}"]
        self._starter = list(starter)
        self._forked = forked
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._said_from = 0
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port = int(self._held.getsockname()[1])

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        return _READY in self.said()

    def said(self) -> bytes:
        """What the broker printed since it was last started."""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as file:
            file.seek(self._said_from)
            return file.read()
        return b""

    # Starting

    @property
    def _line(self) -> list[str]:
        return ["broker", "--listen", self.bootstrap, "--data", str(self.data), *self.options]

    def spawn(self, around: Sequence[str] = ()) -> None:
        """Start it and do not wait. ``around`` is a command that runs it, such as strace."""
        assert not self.runs
        self._said_from = self.log.stat().st_size if self.log.exists() else 0
        if self._forked and not around:
            self._process = fork_server().fork([*self._starter, "--", *self._line], self.log)
            return
        if self._starter:
            command = [sys.executable, "-m", "bench.faults.starter", *self._starter, "--", *self._line]
        else:
            command = [str(COMMAND), *self._line]
        before = dying_with_us()
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*before, *around, *(before if around else []), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
            )

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = _START_S_MAX) -> None:
        """Wait for something that the started broker does; raises if it ends before."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while not condition():
            ended = self._process.poll()
            if (ended is not None and not condition()) or time.monotonic() > deadline:
                state = "still runs" if ended is None else f"ended with {ended}"
                self.kill()
                raise BrokerDied(f"{what}: the broker {state}; it said:\n{self._tail()}")
            time.sleep(_PAUSE_S)

    def start(self, around: Sequence[str] = ()) -> None:
        """Start it and wait for its ready line."""
        self.spawn(around)
        self.wait_until(lambda: self.is_ready, "no ready line")

    # Ending

    def kill(self) -> None:
        """SIGKILL to all of it, and wait until the kernel has closed its files."""
        if self._process is None:
            return
        self._note_rss()
        # Where another command runs the broker, that one may end before it.
        with contextlib.suppress(ProcessLookupError):
            broker = os.pidfd_open(self.pid)
            os.killpg(self._process.pid, signal.SIGKILL)
            readable(broker, _STOP_S_MAX)
            os.close(broker)
        self._process.wait()
        self._process = None

    def stop(self) -> int:
        """Stop as an operator does; returns the exit code."""
        assert self._process is not None
        self._note_rss()
        self.terminate()
        try:
            code = self._process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerDied(f"SIGTERM was ignored for {_STOP_S_MAX} s:\n{self._tail()}") from None
        self._process = None
        return code

    def terminate(self) -> None:
        """SIGTERM, without waiting for what comes of it."""
        os.kill(self.pid, signal.SIGTERM)

    def pause(self) -> None:
        os.killpg(self._session, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._session, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._held.close()

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expect_alive(self) -> None:
        """Raises with what it said if the broker has ended by itself."""
        if not self.runs:
            raise BrokerDied(f"the broker ended by itself; it said:\n{self._tail()}")

    # What the kernel knows of it

    @property
    def _session(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def pid(self) -> int:
        """The broker itself, also where another command runs it."""
        pid = self._session
        while _executable(pid).name in ("strace", "setpriv"):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if not children:
                return pid
            pid = int(children[0])
        return pid

    def rss_mb(self, field: str = "VmRSS") -> float:
        """``VmRSS`` is what it has now, ``VmHWM`` the most it ever had."""
        return rss_mb(self.pid, field)

    def forget_peak(self) -> float:
        """The peak begins anew, so that what was before hides nothing. Returns the memory of now, in MB."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.rss_mb("VmHWM")

    def _note_rss(self) -> None:
        if self.runs:
            self.peak_rss_mb = max(self.peak_rss_mb, self.rss_mb("VmHWM"))

    def _tail(self) -> str:
        return self.said()[-4000:].decode(errors="replace")

    def traces(self) -> list[str]:
        """What the broker did not foresee, in any of its starts: each trace with the lines before and after it."""
        lines = self.log.read_text(errors="replace").splitlines()
        starts = [at for at, line in enumerate(lines) if line.startswith("Traceback")]
        return ["\n".join(lines[max(at - 1, 0) : at + 25]) for at in starts]

    def log_lines(self, containing: str) -> Iterator[str]:
        """Lines of all starts that contain the text."""
        for line in self.log.read_text(errors="replace").splitlines():
            if containing in line:
                yield line


def _executable(pid: int) -> Path:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return Path()
