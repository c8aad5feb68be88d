"""Describes the machine of the results in ``bench/results/machine.json``.

The file has what makes two sets of numbers comparable, and nothing that identifies the machine: no host name, no user,
no path.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from bench.report import RESULTS, write_json
from tools import java
from tools.jars import pinned

__all__ = ["describe_machine", "filesystem_of", "write_machine"]

# Packages whose version can change a result.
_PACKAGES = (
    "aiokafka",
    "confluent-kafka",
    "cramjam",
    "crc32c",
    "deltalake",
    "headrace",
    "kafka-python",
    "msgspec",
    "psycopg",
    "pyarrow",
    "pyspark",
    "redis",
    "starlette",
    "tantivy",
    "uvicorn",
    "websockets",
)


def write_machine(folder: Path = RESULTS) -> None:
    write_json(folder / "machine.json", describe_machine())


def describe_machine() -> dict[str, Any]:
    """Describe the machine. ``filesystem`` is that of the temporary folder, where the measured logs are."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "filesystem": filesystem_of(Path(tempfile.gettempdir()), mounts),
        "python": platform.python_version(),
        "java": _java(),
        "kafka": next(jar.revision for jar in pinned() if jar.name == "kafka_2.13"),
        "librdkafka": _librdkafka(),
        "packages": dict(sorted((d.name, d.version) for d in distributions() if d.name in _PACKAGES)),
    }


def filesystem_of(path: Path, mountinfo: str) -> str:
    """Return the type of the file system of ``path``, by the longest mount point above it."""
    resolved = path.resolve()
    longest, kind = -1, "unknown"
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        mount = Path(_unescape(before.split()[4]))
        if resolved.is_relative_to(mount) and len(mount.parts) >= longest:
            longest, kind = len(mount.parts), after.split()[0]
    return kind


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _cpu() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    match = re.search(r"^(?:model name|Model|CPU part)\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()


def _java() -> str:
    output = subprocess.run([java.java(), "-version"], capture_output=True, text=True, check=True).stderr
    match = re.search(r'version "([^"]+)"', output)
    return match.group(1) if match else "unknown"


def _librdkafka() -> str:
    from confluent_kafka import libversion

    return str(libversion()[0])


if __name__ == "__main__":
    print(json.dumps(describe_machine(), indent=2))
