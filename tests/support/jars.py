"""Shim until tools/jars.py is there."""

from __future__ import annotations

from pathlib import Path

WANTED = Path.home() / ".m2/repository"


def kafka_server_classpath() -> str:
    skip = ("maven", "plexus", "ivy", "junit", "doxia")
    return ":".join(str(p) for p in sorted(WANTED.rglob("*.jar")) if not any(s in str(p) for s in skip))


def spark_jars() -> list[Path]:
    return sorted(Path("/work/tmp/T/spark").glob("*.jar"))
