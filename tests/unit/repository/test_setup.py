"""The set-up says what is missing and what to do."""

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


def test_missing_packages_are_named_with_the_command_that_brings_them() -> None:
    absent = Package("some-package", "no-such-command-anywhere", "a test drives it")
    with pytest.raises(SetupError, match="some-package") as caught:
        debian.provide([absent, Package("bash", "bash", "always there")], may_install=False)
    assert caught.value.hint.startswith("sudo apt-get install some-package ")
    assert "a test drives it" in caught.value.detail


def test_without_a_compiler_the_command_is_set_up_and_the_tests_ask_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiler.trouble() == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no C compiler" in compiler.trouble()
    with pytest.raises(SetupError, match="no C compiler") as caught:
        compiler.provide()
    assert caught.value.hint.startswith("sudo apt-get install gcc libc6-dev")


def test_a_program_that_fails_is_quoted() -> None:
    with pytest.raises(SetupError, match="it broke") as caught:
        run(["sh", "-c", "echo reason >&2; exit 3"], failing="it broke", hint="mend it")
    assert caught.value.detail == "reason"


def test_a_program_that_is_not_there_is_an_error_with_a_next_step() -> None:
    with pytest.raises(SetupError, match="it broke"):
        run(["no-such-command-anywhere"], failing="it broke", hint="mend it")


def test_without_a_home_that_can_be_written_the_clone_has_the_cache() -> None:
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
        kept = {"PATH": os.environ["PATH"], **environment}
        return subprocess.run(command, env=kept, capture_output=True, text=True, check=True).stdout.strip()

    assert cache(HOME="/nowhere") == str(ROOT / ".cache")
    assert cache(HOME="/nowhere", HEADRACE_CACHE="/there") == "/there"
    assert cache(HOME="/nowhere", XDG_CACHE_HOME="/tmp") == ""
    assert cache(HOME="/tmp") == ""


def test_make_names_the_next_step_when_there_is_no_python(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "-C", str(ROOT), "PYTHON=", "setup"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "no Python 3.11 or newer" in done.stderr
    assert "next step:" in done.stderr


def test_an_unknown_part_of_the_set_up_is_refused() -> None:
    command = [sys.executable, "-m", "tools.setup", "everything"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 2


def test_make_explains_itself() -> None:
    said = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    for verb in ("make run", "make test", "make check", "make soak"):
        assert verb in said
