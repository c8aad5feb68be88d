"""Sets up the clone.

    python3 -m tools.setup run      install the headrace command, and everything that apps and their flows need
    python3 -m tools.setup test     also install everything that the tests need

It needs only Python. Completed steps are skipped: the virtual environment contains fingerprints of the installed lock
files. To start from scratch, delete the virtual environment.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools import compiler, debian, jars, java
from tools.console import SetupError, finish, has_printed, run, say
from tools.paths import ROOT, VENV, VENV_PYTHON

__all__ = ["main"]

_OLDEST_PYTHON = (3, 11)
_PIP = (VENV_PYTHON, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check")
_NETWORK = "check the network and pip's settings (index, proxy, certificate), and run the command again"


def for_running() -> None:
    """Install the command ``.venv/bin/headrace`` with its dependencies, and Spark, Java and jars for flows."""
    _install_for_running()
    _compile("src")
    _install("spark", "Spark, which runs flows (456 MB, once)")
    _install("serve", "the server with its web page, SQL, and full-text search")
    java.provide()
    jars.fetch(jars.for_flows())
    _archive_classes()


def _install_for_running() -> None:
    trouble = compiler.trouble()
    fingerprint = (
        _fingerprint("requirements.lock", "pyproject.toml", "src/headrace/records/_walk.c") + trouble
    )
    if _stamp("run").is_file() and _stamp("run").read_text(encoding="utf-8") == fingerprint:
        return
    _make_venv()
    say("pip: the packages of requirements.lock", "headrace needs them to run")
    run(
        [*_PIP, "--require-hashes", "-r", ROOT / "requirements.lock"],
        failing="pip could not install the packages of requirements.lock",
        hint=_NETWORK,
        doing="installing",
    )
    if trouble:
        say(
            "pip: headrace itself, from this directory",
            f"without its C module, so record validation is slower: {trouble}",
        )
    else:
        say("pip: headrace itself, from this directory", "compiling its C module")
    run(
        [*_PIP, "--no-deps", "--no-build-isolation", "--editable", ROOT],
        failing="pip could not install headrace from this directory",
        hint="run rm -rf .venv, then run the command again",
    )
    _stamp("run").write_text(fingerprint, encoding="utf-8")


def for_testing() -> None:
    """Install everything that the tests need: test packages, Debian packages, more jars."""
    # Steps that can fail because the user must install something come first, before any large download.
    debian.provide(debian.TEST_PACKAGES, may_install=debian.can_install())
    compiler.provide()
    for_running()
    _install("test", "pytest, the checks, and stock Kafka clients")
    _compile("tests", "bench", "faults", "tools")
    jars.fetch(jars.pinned())


def _install(part: str, why: str) -> None:
    """Install the packages of ``requirements-<part>.lock``, in addition to those of the command."""
    name = f"requirements-{part}.lock"
    fingerprint = _fingerprint(name)
    if _stamp(part).is_file() and _stamp(part).read_text(encoding="utf-8") == fingerprint:
        return
    say(f"pip: the packages of {name}", why)
    run(
        [*_PIP, "--require-hashes", "--no-build-isolation", "--use-pep517", "-r", ROOT / name],
        failing=f"pip could not install the packages of {name}",
        hint=_NETWORK,
        doing="installing",
    )
    _stamp(part).write_text(fingerprint, encoding="utf-8")


def _archive_classes() -> None:
    """Create the archive of Spark's classes, with which Spark starts faster. A failure is not an error."""
    done = subprocess.run(
        [VENV_PYTHON, "-m", "headrace.flow.spark.training_run"], stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode != 0:
        say(
            "cannot create the archive of Spark's classes",
            "Spark works without it, but starts more slowly",
        )


def _compile(*folders: str) -> None:
    """Compile the Python files of these folders to bytecode. pip does not do that for an editable install. If
    ``PYTHONDONTWRITEBYTECODE`` is set, every start would compile everything again. A folder that is not writable is not
    an error.
    """
    subprocess.run([VENV_PYTHON, "-m", "compileall", "-qq", *(ROOT / name for name in folders)], check=False)


@contextlib.contextmanager
def _setup_lock() -> Iterator[None]:
    """Hold a lock, so that two setup commands in the same clone run one after the other."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    with open(ROOT / ".cache" / "setup.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_venv() -> None:
    """Create the virtual environment, unless a working one exists."""
    if VENV.exists():
        trouble = _venv_problem()
        if not trouble:
            return
        say(".venv: recreating the virtual environment", trouble)
        shutil.rmtree(VENV)
    say(f".venv: creating a virtual environment with Python {platform.python_version()}")
    try:
        _create_venv()
    except SetupError:
        if not debian.can_install():
            raise
        version = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        package = debian.first_available((version, "python3-venv"))
        if package is None:
            raise
        debian.install([package], "Debian has Python's venv module in a separate package")
        shutil.rmtree(VENV, ignore_errors=True)
        _create_venv()


def _venv_problem() -> str:
    """Return the reason why the existing environment cannot be used; an empty string if it can."""
    try:
        done = subprocess.run(
            [VENV_PYTHON, "-c", "import pip, sys; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return f"its Python does not start ({error.strerror})"
    if done.returncode != 0:
        return "its Python does not start, or has no pip"
    if tuple(int(part) for part in done.stdout.split()) < _OLDEST_PYTHON:
        return "its Python is too old"
    # The scripts in a virtual environment contain the full path of its Python, so it cannot be moved.
    created_by = re.search(
        r"^command = (.*)$", (VENV / "pyvenv.cfg").read_text(encoding="utf-8"), re.MULTILINE
    )
    if created_by and not created_by.group(1).endswith(f" {VENV}"):
        return f"it was created in another folder, by {created_by.group(1)}"
    return ""


def _create_venv() -> None:
    run(
        [sys.executable, "-m", "venv", VENV],
        failing=f"{sys.executable} could not create a virtual environment in {VENV}",
        hint="Debian and Ubuntu: sudo apt-get install python3-venv; then run the command again",
    )


def _fingerprint(*names: str) -> str:
    digest = hashlib.sha256(f"{VENV} {platform.machine()}".encode())
    for name in names:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _stamp(name: str) -> Path:
    return VENV / f".headrace-{name}"


def main(arguments: Sequence[str]) -> int:
    began = time.monotonic()
    try:
        if sys.version_info < _OLDEST_PYTHON:
            raise SetupError(
                f"Python {platform.python_version()} is too old: headrace needs 3.11 or newer",
                hint="install a newer Python, or set its path: make PYTHON=/path/to/python3.11 setup",
            )
        if list(arguments) not in (["run"], ["test"]):
            print("usage: python3 -m tools.setup run|test", file=sys.stderr)
            return 2
        with _setup_lock():
            for_running() if arguments == ["run"] else for_testing()
    except SetupError as error:
        return finish(error)
    if has_printed():
        say(f"set up in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
