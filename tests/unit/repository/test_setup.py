"""The set-up reports what is missing and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import compiler, debian
from tools.console import SetupError, run
from tools.debian import Package

from .tracked import ROOT


def test_an_error_about_missing_packages_has_the_install_command() -> None:
    absent = Package("some-package", "no-such-command-anywhere", "a test drives it")
    with pytest.raises(SetupError, match="some-package") as caught:
        debian.provide([absent, Package("bash", "bash", "always there")], may_install=False)
    assert caught.value.hint.startswith("sudo apt-get install some-package ")
    assert "a test drives it" in caught.value.detail


def test_only_the_set_up_of_the_tests_requires_a_c_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiler.trouble() == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no C compiler" in compiler.trouble()
    with pytest.raises(SetupError, match="no C compiler") as caught:
        compiler.provide()
    assert caught.value.hint.startswith("sudo apt-get install gcc libc6-dev")


def test_the_output_of_a_failed_program_is_quoted() -> None:
    with pytest.raises(SetupError, match="it broke") as caught:
        run(["sh", "-c", "echo reason >&2; exit 3"], failing="it broke", hint="repair it")
    assert caught.value.detail == "reason"


def test_a_missing_program_is_an_error_with_a_next_step() -> None:
    with pytest.raises(SetupError, match="it broke"):
        run(["no-such-command-anywhere"], failing="it broke", hint="repair it")


def test_the_cache_is_in_the_clone_if_the_home_directory_is_read_only() -> None:
    def cache(**environment: str) -> str:
        command = [
            "make",
            "-C",
            str(ROOT),
            "-s",
            "-f",
            "Makefile",
            "--eval=show: ; @echo $$HEADRACE_CACHE",
            "show",
        ]
        environment_of_make = {"PATH": os.environ["PATH"], **environment}
        return subprocess.run(
            command, env=environment_of_make, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert cache(HOME="/nowhere") == str(ROOT / ".cache")
    assert cache(HOME="/nowhere", HEADRACE_CACHE="/there") == "/there"
    assert cache(HOME="/nowhere", XDG_CACHE_HOME="/tmp") == ""
    assert cache(HOME="/tmp") == ""


def test_make_names_the_next_step_if_python_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "-C", str(ROOT), "PYTHON=", "setup"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "no Python 3.11 or newer" in done.stderr
    assert "next step:" in done.stderr


def test_an_unknown_part_of_the_set_up_is_refused() -> None:
    command = [sys.executable, "-m", "tools.setup", "everything"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 2


def test_make_without_a_target_prints_help() -> None:
    output = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    for verb in ("make run", "make test", "make check", "make soak"):
        assert verb in output
