"""Apache Kafka's own command-line tools, each in a JVM of its own, from the jars that the tests have anyway."""

from __future__ import annotations

import os
import subprocess

from tools.jars import kafka_server_classpath
from tools.java import QUICK_START, java

__all__ = ["kafka_tool"]

TOOL_S_MAX = 480
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


def kafka_tool(name: str, *arguments: str) -> list[str]:
    """Run ``org.apache.kafka.tools.<name>`` to its end, which must be a good one; what it printed, by lines."""
    classpath = os.pathsep.join(map(str, kafka_server_classpath()))
    command = [java(), *QUICK_START, "-Xmx256m", QUIET, "-cp", classpath, f"org.apache.kafka.tools.{name}"]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=TOOL_S_MAX, check=False
    )
    assert done.returncode == 0, (
        f"{name} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    )
    return done.stdout.splitlines()
