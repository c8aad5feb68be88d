"""What the machine gives: a data directory that can be used, room on the disk, memory, a port, a broker."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from platform import python_version

from headrace.cli.doctor.finding import Finding, fine, missing, optional
from headrace.cli.errors import CliError
from headrace.cli.reach import check_reachable, parse_addresses
from headrace.settings import Settings

__all__ = ["look_at_data", "look_at_log", "look_at_python"]

_ROOM_LEAST = 100 << 20
_ROOM_GOOD = 2 << 30
_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}


def look_at_python() -> Iterator[Finding]:
    from headrace.records import WALKS_IN_C

    yield fine("python", f"Python {python_version()}, headrace {version('headrace')}")
    if WALKS_IN_C:
        yield fine("c-part", "the broker checks records in C")
    else:
        yield optional(
            "c-part",
            "the broker checks records in Python, many times slower: its C part was not compiled",
            "install a C compiler (Debian: apt-get install gcc libc6-dev), then headrace again",
        )


def look_at_data(settings: Settings) -> Iterator[Finding]:
    folder = settings.data.absolute()
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield missing(
            "data",
            f"the data directory {folder} cannot be used: {nearest} "
            + ("cannot be written" if nearest.is_dir() else "is not a folder"),
            "give another one: data in headrace.toml, HEADRACE_DATA or --data; or change who may write there",
        )
        return
    yield fine("data", f"data directory {folder}" + ("" if folder.exists() else ", made by the first start"))
    yield _room(nearest)
    yield from _memory(settings)


def _room(place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:.1f} GB free on the disk of the data directory"
    if free < _ROOM_LEAST:
        return missing("disk", text, "make room: without it the log refuses writes")
    if free < _ROOM_GOOD:
        return optional("disk", text, "set retention for large topics, or give a larger disk")
    return fine("disk", text)


def _memory(settings: Settings) -> Iterator[Finding]:
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", settings.spark.driver_memory.lower())
    if found is None:
        yield missing(
            "memory",
            f"spark.driver_memory is {settings.spark.driver_memory!r}, which the JVM does not understand",
            "write a number with a unit, e.g. 512m or 4g",
        )
        return
    wanted = int(found.group(1)) << _UNITS.get(found.group(2), 0)
    free = _available()
    if free is not None and free < wanted * 1.3:
        yield optional(
            "memory",
            f"{free / 1e9:.1f} GB of memory are free, and Spark may take {wanted * 1.3 / 1e9:.1f} GB",
            "lower spark.driver_memory, or make room",
        )
    elif free is not None:
        yield fine(
            "memory", f"{free / 1e9:.1f} GB of memory free; Spark may take {wanted * 1.3 / 1e9:.1f} GB"
        )


def _available() -> int | None:
    try:
        told = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", told, re.MULTILINE)
    return int(found.group(1)) << 10 if found else None


def look_at_log(settings: Settings) -> Iterator[Finding]:
    log = settings.log
    if log.bootstrap_servers is not None:
        try:
            check_reachable(log.bootstrap_servers)
        except CliError as error:
            yield missing("log", f"{error.message}: {error.detail}", error.hint)
        else:
            yield fine("log", f"a broker answers at {log.bootstrap_servers}")
        return
    if _is_held(settings.log_dir / "lock"):
        yield optional(
            "log",
            f"the embedded log in {settings.log_dir} is in use: a broker or an app runs on it now",
            "nothing to do if that is yours; a second one needs another data directory",
        )
        return
    yield _port(log.listen)


def _port(listen: str) -> Finding:
    host, port = parse_addresses(listen)[0]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the broker does, which need not wait for the remains of an earlier connection.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = "another process has it" if error.errno == errno.EADDRINUSE else error.strerror
            return missing(
                "port",
                f"the embedded broker cannot listen on {listen}: {why}",
                "stop that process, or listen elsewhere: log.listen or --listen (port 0 takes a free one); or use "
                "the broker that is there: -b HOST:PORT",
            )
    return fine("port", f"the embedded broker can listen on {listen}")


def _is_held(path: Path) -> bool:
    """Whether a broker has the directory now; nothing is changed by asking."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
