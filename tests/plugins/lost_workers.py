"""A test process that dies ends the run, as a failure that says which test it was in, how it ended, and where.

pytest-xdist would replace it and go on, but under ``--dist loadfile`` the replacement waits for ever for the rest of
the file whose test died.
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
)  # Behind pytest, which has such traces on a standard error that may not be kept.
def pytest_configure(config: pytest.Config) -> None:
    told = getattr(config, "workerinput", None)
    if told is not None:
        path = trace_file(config, told["workerid"])
        path.parent.mkdir(exist_ok=True)
        config.pluginmanager.register(LastWords(path.open("w")))


class LastWords:
    """The test that runs, and below it what Python says when the process is about to die of a signal."""

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
        said = path.read_text(errors="replace") if path.exists() else ""
        reporter = node.config.pluginmanager.get_plugin("terminalreporter")
        reporter.write_line(
            f"the test process {node.gateway.id} ended {_ending(node)} in {said or 'no test'}"
        )
        pytest.exit(f"a test process died: {error}", returncode=pytest.ExitCode.TESTS_FAILED)


def _ending(node: Any) -> str:
    process: subprocess.Popen[bytes] = node.gateway._io.popen
    try:
        code = process.wait(_GONE_S_MAX)
    except subprocess.TimeoutExpired:
        return "its connection only, and still runs,"
    return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
