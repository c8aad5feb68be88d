"""A dead test process fails the run. The report names the running test, the signal or exit code, and the traceback.

pytest-xdist would replace the process, but under ``--dist loadfile`` the replacement waits forever for the remaining
tests of the file.
"""

from __future__ import annotations

import faulthandler
import signal
import subprocess
from pathlib import Path
from typing import Any, TextIO

import pytest

_GONE_S_MAX = 30


def trace_file(config: pytest.Config, worker: str) -> Path:
    return config.rootpath / "build" / f"last-{worker}.txt"


@pytest.hookimpl(
    trylast=True
)  # After pytest's own handler, which writes tracebacks to standard error, where they may be lost.
def pytest_configure(config: pytest.Config) -> None:
    worker_input = getattr(config, "workerinput", None)
    if worker_input is not None:
        path = trace_file(config, worker_input["workerid"])
        path.parent.mkdir(exist_ok=True)
        config.pluginmanager.register(LastWords(path.open("w")))


class LastWords:
    """The running test, and below it Python's traceback when a signal kills the process."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        faulthandler.enable(file)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"{nodeid}\n")
        self._file.flush()

    def pytest_unconfigure(self) -> None:
        faulthandler.disable()
        self._file.close()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    if error:
        path = trace_file(node.config, node.gateway.id)
        last_words = path.read_text(errors="replace") if path.exists() else ""
        reporter = node.config.pluginmanager.get_plugin("terminalreporter")
        reporter.write_line(
            f"the test process {node.gateway.id} ended {_ending(node)} in {last_words or 'no test'}"
        )
        pytest.exit(f"a test process died: {error}", returncode=pytest.ExitCode.TESTS_FAILED)


def _ending(node: Any) -> str:
    process: subprocess.Popen[bytes] = node.gateway._io.popen
    try:
        code = process.wait(_GONE_S_MAX)
    except subprocess.TimeoutExpired:
        return "its connection only, and still runs,"
    return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
