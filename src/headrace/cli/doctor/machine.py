"""Checks of the machine: Python, data directory, disk, memory, port and broker."""

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

__all__ = ["check_data_dir", "check_log", "check_python"]

_DISK_BYTES_MIN = 100 << 20
_DISK_BYTES_RECOMMENDED = 2 << 30
_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}


def check_python() -> Iterator[Finding]:
    from headrace.records import VALIDATES_IN_C

    yield fine("python", f"Python {python_version()}, headrace {version('headrace')}")
    if VALIDATES_IN_C:
        yield fine("c-part", "the broker validates records in C")
    else:
        yield optional(
            "c-part",
            "the C module is not compiled, so the broker validates records in Python, which is many times slower",
            "install a C compiler (Debian: apt-get install gcc libc6-dev), then install headrace again",
        )


def check_data_dir(settings: Settings) -> Iterator[Finding]:
    folder = settings.data.absolute()
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield missing(
            "data",
            f"cannot use the data directory {folder}: {nearest} "
            + ("is not writable" if nearest.is_dir() else "is not a folder"),
            "set another directory (data in headrace.toml, HEADRACE_DATA or --data), or change the permissions",
        )
        return
    yield fine(
        "data", f"data directory {folder}" + ("" if folder.exists() else ", which the first start creates")
    )
    yield _disk(nearest)
    yield from _memory(settings)


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e9:.1f} GB free on the disk of the data directory"
    if free < _DISK_BYTES_MIN:
        return missing("disk", text, "free some disk space: the log rejects writes when the disk is full")
    if free < _DISK_BYTES_RECOMMENDED:
        return optional("disk", text, "set retention for large topics, or use a larger disk")
    return fine("disk", text)


def _memory(settings: Settings) -> Iterator[Finding]:
    size = re.fullmatch(r"(\d+)([kmgt]?)b?", settings.spark.driver_memory.lower())
    if size is None:
        yield missing(
            "memory",
            f"spark.driver_memory is {settings.spark.driver_memory!r}, which is not a size for the JVM",
            "write a number with a unit, e.g. 512m or 4g",
        )
        return
    heap_bytes = int(size.group(1)) << _UNITS.get(size.group(2), 0)
    free = _available_bytes()
    if free is not None and free < heap_bytes * 1.3:
        yield optional(
            "memory",
            f"{free / 1e9:.1f} GB of memory free; Spark may use {heap_bytes * 1.3 / 1e9:.1f} GB",
            "lower spark.driver_memory, or free some memory",
        )
    elif free is not None:
        yield fine(
            "memory", f"{free / 1e9:.1f} GB of memory free; Spark may use {heap_bytes * 1.3 / 1e9:.1f} GB"
        )


def _available_bytes() -> int | None:
    try:
        memory = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    available = re.search(r"^MemAvailable:\s+(\d+) kB", memory, re.MULTILINE)
    return int(available.group(1)) << 10 if available else None


def check_log(settings: Settings) -> Iterator[Finding]:
    log = settings.log
    if log.bootstrap_servers is not None:
        try:
            check_reachable(log.bootstrap_servers)
        except CliError as error:
            yield missing("log", f"{error.message}: {error.detail}", error.hint)
        else:
            yield fine("log", f"a broker responds at {log.bootstrap_servers}")
        return
    if _is_locked(settings.log_dir / "lock"):
        yield optional(
            "log",
            f"the embedded log in {settings.log_dir} is in use by a running broker or app",
            "no action is needed if you started it; a second broker needs another data directory",
        )
        return
    yield _port(log.listen)


def _port(listen: str) -> Finding:
    host, port = parse_addresses(listen)[0]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # The broker sets this option too. With it, a restart need not wait until old connections expire.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = "another process uses it" if error.errno == errno.EADDRINUSE else error.strerror
            return missing(
                "port",
                f"the embedded broker cannot listen on {listen}: {reason}",
                "stop that process, set another address (log.listen or --listen; port 0 selects a free port), or use "
                "the broker at that address: -b HOST:PORT",
            )
    return fine("port", f"the embedded broker can listen on {listen}")


def _is_locked(path: Path) -> bool:
    """Whether a broker uses the directory now."""
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
