"""A broker under attack: a process that keeps its port and data directory through all its restarts.

A socket that never listens reserves the port while the broker is down, so that no other program uses it and no client
connects to itself through it. The process has its own session and dies with the process that started it, so a failed
test leaves nothing running.
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

from faults.servers.fork_server import ROOT, Forked, fork_server, parent_death_prefix
from faults.servers.process_tree import rss_mb
from headrace.files import readable

__all__ = ["BrokerDied", "BrokerProcess"]

COMMAND = Path(sys.executable).parent / "headrace"
_READY = b"ready on"
_START_S_MAX = 240.0
_STOP_S_MAX = 120.0
_PAUSE_S = 0.001


class BrokerDied(AssertionError):
    """The broker exited or did not start, although the run did not kill it."""


class BrokerProcess:
    """``home`` contains the data directory ``data`` and the broker's output in ``broker.log``.

    The process runs the same command as users. With ``starter`` options, ``broker_starter`` starts it instead, which
    can remove a protection or set what the command line has no option for. With ``forked``, the process is forked from
    one that has already imported the broker, so a start is faster.
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
        self._output_start = 0
        self._port_reservation = socket.socket()
        self._port_reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port_reservation.bind(("127.0.0.1", 0))
        self.port = int(self._port_reservation.getsockname()[1])

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        return _READY in self.output_since_start()

    def output_since_start(self) -> bytes:
        """Return the broker's output since its last start."""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as file:
            file.seek(self._output_start)
            return file.read()
        return b""

    # Starting

    @property
    def _arguments(self) -> list[str]:
        return ["broker", "--listen", self.bootstrap, "--data", str(self.data), *self.options]

    def spawn(self, wrapper: Sequence[str] = ()) -> None:
        """Start without waiting. ``wrapper`` is a command that runs the broker, such as strace."""
        assert not self.is_running
        self._output_start = self.log.stat().st_size if self.log.exists() else 0
        if self._forked and not wrapper:
            self._process = fork_server().fork([*self._starter, "--", *self._arguments], self.log)
            return
        if self._starter:
            command = [
                sys.executable,
                "-m",
                "faults.servers.broker_starter",
                *self._starter,
                "--",
                *self._arguments,
            ]
        else:
            command = [str(COMMAND), *self._arguments]
        death_prefix = parent_death_prefix()
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*death_prefix, *wrapper, *(death_prefix if wrapper else []), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
            )

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = _START_S_MAX) -> None:
        """Wait until the condition is true. Raise if the broker exits first or the time is over."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while not condition():
            exit_code = self._process.poll()
            if (exit_code is not None and not condition()) or time.monotonic() > deadline:
                state = "still runs" if exit_code is None else f"ended with {exit_code}"
                self.kill()
                raise BrokerDied(f"{what}: the broker {state}; it printed:\n{self._tail()}")
            time.sleep(_PAUSE_S)

    def start(self, wrapper: Sequence[str] = ()) -> None:
        """Start the broker, and wait for its ready line."""
        self.spawn(wrapper)
        self.wait_until(lambda: self.is_ready, "no ready line")

    # Stopping

    def kill(self) -> None:
        """SIGKILL the whole process group, and wait until the kernel has closed its files."""
        if self._process is None:
            return
        self._sample_rss()
        # The command around the broker can exit before the broker does.
        with contextlib.suppress(ProcessLookupError):
            broker = os.pidfd_open(self.pid)
            os.killpg(self._process.pid, signal.SIGKILL)
            readable(broker, _STOP_S_MAX)
            os.close(broker)
        self._process.wait()
        self._process = None

    def stop(self) -> int:
        """Stop the broker as an operator does, and return the exit code."""
        assert self._process is not None
        self._sample_rss()
        self.terminate()
        try:
            code = self._process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerDied(f"SIGTERM was ignored for {_STOP_S_MAX} s:\n{self._tail()}") from None
        self._process = None
        return code

    def terminate(self) -> None:
        """Send SIGTERM without waiting."""
        os.kill(self.pid, signal.SIGTERM)

    def pause(self) -> None:
        os.killpg(self._session, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._session, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._port_reservation.close()

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expect_alive(self) -> None:
        """Raise an error with the broker's output if the broker has exited unexpectedly."""
        if not self.is_running:
            raise BrokerDied(f"the broker exited unexpectedly; it printed:\n{self._tail()}")

    # From /proc

    @property
    def _session(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def pid(self) -> int:
        """The process id of the broker itself, even if another command runs it."""
        pid = self._session
        while _executable(pid).name in ("strace", "setpriv"):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if not children:
                return pid
            pid = int(children[0])
        return pid

    def rss_mb(self, field: str = "VmRSS") -> float:
        """``VmRSS`` is the current memory, ``VmHWM`` the peak."""
        return rss_mb(self.pid, field)

    def reset_peak_mb(self) -> float:
        """Reset the peak, so that earlier use does not hide later growth. Return the current memory in MB."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.rss_mb("VmHWM")

    def _sample_rss(self) -> None:
        if self.is_running:
            self.peak_rss_mb = max(self.peak_rss_mb, self.rss_mb("VmHWM"))

    def _tail(self) -> str:
        return self.output_since_start()[-4000:].decode(errors="replace")

    def unexpected_exceptions(self) -> list[str]:
        """Return the unexpected exceptions of all starts: each traceback with the lines before and after it."""
        lines = self.log.read_text(errors="replace").splitlines()
        starts = [at for at, line in enumerate(lines) if line.startswith("Traceback")]
        return ["\n".join(lines[max(at - 1, 0) : at + 25]) for at in starts]

    def log_lines(self, containing: str) -> Iterator[str]:
        """Return the lines of all starts that contain the text."""
        for line in self.log.read_text(errors="replace").splitlines():
            if containing in line:
                yield line


def _executable(pid: int) -> Path:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return Path()
