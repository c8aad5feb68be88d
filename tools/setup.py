"""Sets the clone up.

    python3 -m tools.setup run      the command, and what it and an app's flows run on
    python3 -m tools.setup test     that, and all that the tests need

Starts from Python and nothing else. Every step looks first and does nothing when it is done already: what was installed
is known by a fingerprint of the lock files, kept in the virtual environment, so that deleting it is a clean start.
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
from tools.console import SetupError, finish, has_said_anything, run, say
from tools.places import ROOT, VENV, VENV_PYTHON

__all__ = ["main"]

_OLDEST_PYTHON = (3, 11)
_PIP = (VENV_PYTHON, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check")
_NETWORK = (
    "check the network (pip's own settings apply: an index, a proxy, a certificate) and run the command again"
)


def for_running() -> None:
    """The command at ``.venv/bin/headrace`` and what it imports; Spark, Java and jars, on which flows run."""
    _install_for_running()
    _compile("src")
    _install("spark", "Spark, on which flows run (456 MB, once)")
    _install("serve", "the server, which has the page")
    java.provide()
    jars.fetch(jars.for_flows())
    _read_classes()


def _install_for_running() -> None:
    trouble = compiler.trouble()
    wanted = _fingerprint("requirements.lock", "pyproject.toml", "src/headrace/records/_walk.c") + trouble
    if _stamp("run").is_file() and _stamp("run").read_text(encoding="utf-8") == wanted:
        return
    _make_venv()
    say("pip: the packages of requirements.lock", "what headrace imports when it runs")
    run(
        [*_PIP, "--require-hashes", "-r", ROOT / "requirements.lock"],
        failing="pip could not install the packages of requirements.lock",
        hint=_NETWORK,
        doing="installing",
    )
    if trouble:
        say(
            "pip: headrace itself, from this folder",
            f"without its C part, so it takes records more slowly: {trouble}",
        )
    else:
        say("pip: headrace itself, from this folder", "compiling its C part")
    run(
        [*_PIP, "--no-deps", "--no-build-isolation", "--editable", ROOT],
        failing="pip could not install headrace from this folder",
        hint="rm -rf .venv and run the command again",
    )
    _stamp("run").write_text(wanted, encoding="utf-8")


def for_testing() -> None:
    """All that the tests start or compare with: test packages, Debian packages, more jars."""
    # First what a person may have to do: nobody should wait for a large download to be told.
    debian.provide(debian.TEST_PACKAGES, may_install=debian.can_install())
    compiler.provide()
    for_running()
    _install("test", "pytest, the checks, and stock Kafka clients")
    _compile("tests", "bench", "tools")
    jars.fetch(jars.pinned())


def _install(part: str, why: str) -> None:
    """The packages of ``requirements-<part>.lock``, on top of what the command has."""
    name = f"requirements-{part}.lock"
    wanted = _fingerprint(name)
    if _stamp(part).is_file() and _stamp(part).read_text(encoding="utf-8") == wanted:
        return
    say(f"pip: the packages of {name}", why)
    run(
        [*_PIP, "--require-hashes", "--no-build-isolation", "--use-pep517", "-r", ROOT / name],
        failing=f"pip could not install the packages of {name}",
        hint=_NETWORK,
        doing="installing",
    )
    _stamp(part).write_text(wanted, encoding="utf-8")


def _read_classes() -> None:
    """Only makes Spark start sooner, so that it failed is told and no reason to stop."""
    done = subprocess.run(
        [VENV_PYTHON, "-m", "headrace.flow.training"], stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode != 0:
        say(
            "Spark's classes could not be read in advance", "it works all the same, and takes longer to start"
        )


def _compile(*folders: str) -> None:
    """Bytecode of what runs from this folder: pip compiles what it installs, but not what it only points to, and where
    ``PYTHONDONTWRITEBYTECODE`` is set every start would compile everything again. What is up to date is left alone, and
    a folder that cannot be written is no failure.
    """
    subprocess.run([VENV_PYTHON, "-m", "compileall", "-qq", *(ROOT / name for name in folders)], check=False)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Two commands that set the same clone up at once do it one after the other."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    with open(ROOT / ".cache" / "setup.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_venv() -> None:
    """A virtual environment, unless one that works is there; what is in it already is left alone."""
    if VENV.exists():
        trouble = _trouble_with_venv()
        if not trouble:
            return
        say(".venv: making the virtual environment anew", trouble)
        shutil.rmtree(VENV)
    say(f".venv: a virtual environment of Python {platform.python_version()}")
    try:
        _venv()
    except SetupError:
        if not debian.can_install():
            raise
        version = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        package = debian.first_available((version, "python3-venv"))
        if package is None:
            raise
        debian.install([package], "Debian keeps Python's venv module in a package of its own")
        shutil.rmtree(VENV, ignore_errors=True)
        _venv()


def _trouble_with_venv() -> str:
    """Why the environment that is there cannot be used, or nothing."""
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
    # Scripts in it name their Python by its full path.
    made_by = re.search(r"^command = (.*)$", (VENV / "pyvenv.cfg").read_text(encoding="utf-8"), re.MULTILINE)
    if made_by and not made_by.group(1).endswith(f" {VENV}"):
        return f"it was made in another folder, by {made_by.group(1)}"
    return ""


def _venv() -> None:
    run(
        [sys.executable, "-m", "venv", VENV],
        failing=f"{sys.executable} could not make a virtual environment in {VENV}",
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
                hint="install a newer Python, or name one: make PYTHON=/path/to/python3.11 setup",
            )
        if list(arguments) not in (["run"], ["test"]):
            print("usage: python3 -m tools.setup run|test", file=sys.stderr)
            return 2
        with _alone():
            for_running() if arguments == ["run"] else for_testing()
    except SetupError as error:
        return finish(error)
    if has_said_anything():
        say(f"set up in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
