"""A test that fails beside all others is run once more, alone; what did not run never passes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.again import MOST
from tools.places import ROOT

UNSTEADY = """
from pathlib import Path

def test_it(tmp_path_factory):
    mark = Path(__file__).with_suffix(".mark")
    seen, _ = mark.exists(), mark.touch()
    assert seen
"""
BROKEN = "def test_it():\n    assert False\n"
FINE = "def test_it():\n    pass\n"
LEAVING = "import os\n\ndef test_it():\n    os._exit(3)\n"
LEAVING_ONCE = """
import os, signal
from pathlib import Path

def test_it():
    mark = Path(__file__).with_suffix(".mark")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGSEGV)

def test_behind_it():
    pass
"""
BROKEN_BEHIND = LEAVING_ONCE.replace("    pass", "    assert False")
UNREADABLE = "import nothing_like_this\n"


@pytest.fixture
def ran_twice(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    def run(*files: str) -> tuple[int, str]:
        for index, text in enumerate(files):
            (tmp_path / f"test_{index}.py").write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        plugins = [
            "-p",
            "xdist.plugin",
            "-p",
            "tests.plugins.lost_workers",
            "-p",
            "tests.plugins.failed_list",
        ]
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        first = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-n",
                "2" if {LEAVING, LEAVING_ONCE, BROKEN_BEHIND} & set(files) else "0",
                "--dist",
                "loadfile",
                *plugins,
                "--failed-list",
                tmp_path / "failed.json",
            ],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
        )
        assert first.returncode != 0
        again = subprocess.run(
            [sys.executable, "-m", "tools.again", tmp_path / "failed.json", "-n", "2", *plugins],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
        )
        return again.returncode, first.stdout + again.stdout + again.stderr

    return run


@pytest.mark.parametrize(
    ("files", "code", "told"),
    [
        ((UNSTEADY, FINE), 0, "unsteady, passed alone: test_0.py::test_it"),
        ((UNSTEADY, BROKEN), 1, "failed twice: test_1.py::test_it"),
        ((UNSTEADY,) * (MOST + 1), 1, f"{MOST + 1} tests failed"),
        ((UNSTEADY, UNREADABLE), 1, "did not run to their end"),
        ((LEAVING, FINE), 1, "did not run to their end"),
        ((LEAVING_ONCE,), 0, "by SIGSEGV in test_0.py::test_it\nFatal Python error: Segmentation fault"),
        ((BROKEN_BEHIND, FINE), 1, "failed twice: test_0.py::test_behind_it"),
    ],
)
def test_only_what_passes_alone_is_let_through(
    ran_twice: Callable[..., tuple[int, str]], files: tuple[str, ...], code: int, told: str
) -> None:
    ended, said = ran_twice(*files)
    assert told in said
    assert ended == code
