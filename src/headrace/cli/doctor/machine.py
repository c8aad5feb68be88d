"""Checks of the machine: Python, data directory, disk, memory, limits, ports and broker."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import shutil
import socket
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from platform import python_version

from headrace.cli.doctor.finding import Finding, fine, missing, optional
from headrace.cli.errors import CliError
from headrace.cli.reach import check_reachable, parse_addresses
from headrace.settings import DEFAULT_SERVE_LISTEN, SERVE_OFF, Settings

__all__ = ["check_data_dir", "check_limits", "check_log", "check_python", "check_server"]

_DISK_BYTES_MIN = 100 << 20
_DISK_BYTES_RECOMMENDED = 2 << 30
_OPEN_FILES_RECOMMENDED = 4_096
_THREADS_RECOMMENDED = 512
_CGROUP = Path("/sys/fs/cgroup")
_SERVER_LIBRARIES = ("starlette", "uvicorn", "httptools", "websockets")
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
    """Return the memory that this process can still use: the machine's, or what is left of a container's limit."""
    try:
        memory = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    available = re.search(r"^MemAvailable:\s+(\d+) kB", memory, re.MULTILINE)
    limit, used = _cgroup_number("memory.max"), _cgroup_number("memory.current")
    sizes = [int(available.group(1)) << 10] if available else []
    if limit is not None and used is not None:
        sizes.append(max(0, limit - used))
    return min(sizes, default=None)


def _cgroup_number(name: str) -> int | None:
    """Return a number of the container's control group; None if it has no limit."""
    try:
        text = (_CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def check_limits() -> Iterator[Finding]:
    """The broker uses the hard limit of open files, and Spark starts hundreds of threads."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    threads = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    threads_max = min(
        (
            limit
            for limit in (threads, _cgroup_number("pids.max"))
            if limit not in (None, resource.RLIM_INFINITY)
        ),
        default=None,
    )
    text = f"at most {'any number of' if files == resource.RLIM_INFINITY else f'{files:,}'} open files, and "
    text += f"{'any number of' if threads_max is None else f'{threads_max:,}'} threads"
    if files != resource.RLIM_INFINITY and files < _OPEN_FILES_RECOMMENDED:
        yield optional(
            "limits",
            f"{text}: each partition and each client needs open files",
            f"raise the hard limit of open files to {_OPEN_FILES_RECOMMENDED} or more (ulimit -Hn, LimitNOFILE= of"
            " systemd, --ulimit nofile= of a container)",
        )
    elif threads_max is not None and threads_max < _THREADS_RECOMMENDED:
        yield optional(
            "limits",
            f"{text}: Spark needs some hundred threads",
            f"raise the limit of processes to {_THREADS_RECOMMENDED} or more (ulimit -u, TasksMax= of systemd,"
            " --pids-limit of a container)",
        )
    else:
        yield fine("limits", text)


def check_server(settings: Settings) -> Iterator[Finding]:
    """Check what the web UI, the HTTP API and SQL need. Without them, everything else works."""
    absent = [name for name in _SERVER_LIBRARIES if find_spec(name) is None]
    if absent:
        yield optional(
            "server",
            f"no web UI and no HTTP API: {', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed",
            'pip install "headrace[serve]"',
        )
    elif settings.serve.listen != SERVE_OFF:
        yield _server_port(settings)
    if find_spec("duckdb") is None or find_spec("pyarrow") is None:
        yield optional("sql", "no SQL over views: duckdb is not installed", 'pip install "headrace[sql]"')


def _server_port(settings: Settings) -> Finding:
    listen = settings.serve.listen or DEFAULT_SERVE_LISTEN
    reason = _why_taken(listen)
    if reason is None:
        return fine("server", f"the web UI can listen on {listen}")
    if settings.serve.listen is None:
        return optional(
            "server",
            f"the web UI cannot listen on {listen}: {reason}",
            "no action is needed: headrace run selects a free port, and prints it",
        )
    return missing(
        "server",
        f"the web UI cannot listen on {listen}: {reason}",
        "stop that process, or set another address (serve.listen or --serve; port 0 selects a free port)",
    )


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
    reason = _why_taken(listen)
    if reason is None:
        return fine("port", f"the embedded broker can listen on {listen}")
    return missing(
        "port",
        f"the embedded broker cannot listen on {listen}: {reason}",
        "stop that process, set another address (log.listen or --listen; port 0 selects a free port), or use "
        "the broker at that address: -b HOST:PORT",
    )


def _why_taken(listen: str) -> str | None:
    """Return why no process can listen on the address; None if one can."""
    host, port = parse_addresses(listen)[0]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # The broker sets this option too. With it, a restart need not wait until old connections expire.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return "another process uses it" if error.errno == errno.EADDRINUSE else str(error.strerror)
    return None


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
