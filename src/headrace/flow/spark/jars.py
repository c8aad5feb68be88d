"""Spark's Kafka connector: jars with pinned coordinates and SHA-256, downloaded once into a cache.

``jars.lock`` is a flat list, because transitive resolution would also require jars that are not needed and might not
exist. Ivy, which is part of PySpark, downloads each jar separately, so Maven is not needed. A file is renamed into the
cache after its hash was verified, so a killed or concurrent run never leaves a partial jar. The hashes are checked
before use, and the cache can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headrace.flow.spark.errors import JarDiffers, MissingExtra, MissingJars

__all__ = [
    "QUICK_START",
    "Jar",
    "cache_dir",
    "fetch",
    "ivy",
    "jars_dir",
    "pinned",
    "provide",
    "pyspark_home",
    "read_lock",
]

Say = Callable[[str], None]

# JVM options for short programs: no second compiler, no threads of the garbage collector.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_LOCK = Path(__file__).with_name("jars.lock")
_CONCURRENT_DOWNLOADS = 3
_FETCH_S_MAX = 300
_OUTPUT_LINES_MAX = 15


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of a lock file."""

    group: str
    organisation: str
    name: str
    revision: str
    sha256: str
    purpose: str

    @property
    def coordinates(self) -> str:
        return f"{self.organisation}:{self.name}:{self.revision}"

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.revision}.jar"

    def path_in(self, folder: Path) -> Path:
        return folder / self.file_name

    def is_in(self, folder: Path) -> bool:
        path = self.path_in(folder)
        return path.is_file() and _sha256(path) == self.sha256


def read_lock(text: str, name: str = "jars.lock") -> tuple[Jar, ...]:
    """Parse lines ``organisation:name:revision sha256 purpose`` under ``[group]`` headings."""
    jars: list[Jar] = []
    group = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            group = line.strip("[]")
            continue
        coordinates, _, rest = line.partition(" ")
        organisation, artifact, revision, *extra = [*coordinates.split(":"), "", ""]
        sha256, _, purpose = rest.strip().partition(" ")
        if not revision or any(extra) or len(sha256) != 64 or not purpose or not group:
            raise MissingJars(
                f"{name} line {number} is not 'organisation:name:revision sha256 purpose': {line}"
            )
        jars.append(Jar(group, organisation, artifact, revision, sha256, purpose.strip()))
    return tuple(jars)


@cache
def pinned() -> tuple[Jar, ...]:
    """Return the jars that Spark needs, in addition to PySpark, to read and write topics."""
    return read_lock(_LOCK.read_text(encoding="utf-8"))


def jars_dir() -> Path:
    return cache_dir() / "jars"


def provide(java: Path, *, folder: Path | None = None, say: Say) -> list[Path]:
    """Download missing jars of the connector, and return the paths of all."""
    folder = folder or jars_dir()
    fetch(pinned(), folder, java=java, ivy=ivy(), say=say)
    return [jar.path_in(folder) for jar in pinned()]


def fetch(jars: Iterable[Jar], folder: Path, *, java: Path, ivy: Path, say: Say) -> None:
    """Download every jar that is missing in the directory or has another hash."""
    missing = [jar for jar in jars if not jar.is_in(folder)]
    if not missing:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingJars(
            f"cannot create {folder} for jars: {error.strerror or error}",
            hint="set HEADRACE_CACHE to a writable directory",
        ) from error
    say(f"downloading {len(missing)} jar{'s' * (len(missing) != 1)} into {folder} (once)")
    with ThreadPoolExecutor(_CONCURRENT_DOWNLOADS) as pool:
        running = {pool.submit(_fetch_one, jar, folder, java, ivy): jar for jar in missing}
        try:
            for count, finished in enumerate(as_completed(running), start=1):
                finished.result()
                jar = running[finished]
                say(f"jar {count}/{len(missing)}: {jar.name} {jar.revision}: {jar.purpose}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _fetch_one(jar: Jar, folder: Path, java: Path, ivy: Path) -> None:
    settings = os.environ.get("HEADRACE_IVY_SETTINGS")
    path = jar.path_in(folder)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as work:
        command = [
            *(java, *QUICK_START, "-cp", ivy, "org.apache.ivy.Main"),
            *(("-settings", settings) if settings else ()),
            *("-cache", f"{work}/cache", "-error", "-notransitive"),
            *("-dependency", jar.organisation, jar.name, jar.revision),
            *("-types", "jar", "bundle", "-retrieve", f"{work}/[artifact]-[revision].[ext]"),
        ]
        hint = (
            "check the network and run the command again; behind a mirror, set HEADRACE_IVY_SETTINGS to an Ivy "
            f"settings file; or copy the file from another machine to {path}"
        )
        code, output = _run(command)
        downloaded = Path(work) / jar.file_name
        if code is None:
            raise MissingJars(
                f"the download of {jar.coordinates} took longer than {_FETCH_S_MAX} s", hint=hint
            )
        if code != 0 or not downloaded.is_file():
            raise MissingJars(f"{jar.coordinates} could not be downloaded", detail=output, hint=hint)
        actual_sha256 = _sha256(downloaded)
        if actual_sha256 != jar.sha256:
            raise JarDiffers(
                f"{jar.coordinates} is not the pinned file",
                detail=f"SHA-256 found {actual_sha256}, expected {jar.sha256}",
                hint="do not use the file: either the file on the server or the lock file was changed",
            )
        downloaded.replace(path)


def _run(command: Sequence[str | Path]) -> tuple[int | None, str]:
    """Run a command. Returns the exit code (None after a timeout) and the last lines of the output."""
    try:
        finished = subprocess.run(  # noqa: S603  the Java that was found, and PySpark's own Ivy
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_FETCH_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return finished.returncode, "\n".join(
        (finished.stdout + finished.stderr).splitlines()[-_OUTPUT_LINES_MAX:]
    )


def pyspark_home() -> Path:
    """Find PySpark's directory without importing PySpark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingExtra("pyspark")
    return Path(spec.origin).parent


def ivy() -> Path:
    ivy_jars = sorted((pyspark_home() / "jars").glob("ivy-*.jar"))
    if not ivy_jars:
        raise MissingExtra("pyspark with its jars (not pyspark-client)")
    return ivy_jars[-1]


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_dir() -> Path:
    """Return ``HEADRACE_CACHE``, or by default ``headrace`` in the user's cache directory."""
    path = os.environ.get("HEADRACE_CACHE")
    if path:
        return Path(path).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification requires programs to ignore a relative path.
    return (Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()) / "headrace"
