"""The Java client in its own JVM, controlled by lines of JSON. The Java side is in ``faults/clients/driver``.

The driver is compiled once for each version of its sources and cached in ``build/``. One JVM serves many tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from faults.clients.port import Refused
from tools.jars import kafka_server_classpath
from tools.java import QUICK_START, compile_java, java

__all__ = ["JavaDriver"]

SOURCES = Path(__file__).resolve().with_name("driver")
BUILD = Path(__file__).resolve().parents[2] / "build" / "wire-java"


def compile_driver() -> Path:
    """Compile the driver unless it is cached, and return the directory of its classes. Several processes may call this
    at the same time.
    """
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    target = BUILD / digest
    if not target.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        fresh = tempfile.mkdtemp(dir=BUILD)
        compile_java(sources, kafka_server_classpath(), Path(fresh))
        try:
            os.rename(fresh, target)
        except OSError:
            assert target.exists()
    return target


class JavaDriver:
    """One JVM. ``call`` returns the result, or raises ``Refused`` with Kafka's error code."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        classpath = os.pathsep.join(map(str, [compile_driver(), *kafka_server_classpath()]))
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        # The file stays open as long as the driver runs. ``call`` reports its content if the JVM exits
        # unexpectedly.
        self.stderr_file = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [java(), *QUICK_START, "-Xmx256m", quiet, "-cp", classpath, "Main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr_file,
            text=True,
            bufsize=1,
        )

    def call(self, op: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.lock:
            self.process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            line = self.process.stdout.readline()
        if not line:
            self.stderr_file.seek(0)
            raise AssertionError(f"the Java driver exited; it printed:\n{self.stderr_file.read()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"], answer["message"])
        assert "failure" not in answer, f"{op}: {answer['failure']}"
        return answer["ok"]

    def close(self) -> None:
        """Close the driver's input, which makes it exit."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()
        self.stderr_file.close()

    def kill(self) -> None:
        """Kill the JVM, as if the machines of all its clients had lost power."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.stderr_file.close()
