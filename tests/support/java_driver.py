"""The Java client in a JVM of its own, spoken to in lines of JSON (the other end: ``tests/wire/java``).

The driver is compiled once per state of its sources and kept in ``build/``; a JVM serves as many tests as want it.
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

from tests.support.refused import Refused
from tools.jars import kafka_server_classpath
from tools.java import QUICK_START, compile_java, java

__all__ = ["JavaDriver"]

SOURCES = Path(__file__).resolve().parents[1] / "wire" / "java"
BUILD = Path(__file__).resolve().parents[2] / "build" / "wire-java"


def compiled() -> Path:
    """The directory of the driver's classes; two sessions that compile at once do not disturb each other."""
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
    """One JVM; ``call`` returns the result, or raises ``Refused`` with Kafka's error number."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        classpath = os.pathsep.join(map(str, [compiled(), *kafka_server_classpath()]))
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        # Open for as long as the driver is; what it holds is shown when the JVM ends by itself.
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [java(), *QUICK_START, "-Xmx256m", quiet, "-cp", classpath, "Main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
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
            self.said.seek(0)
            raise AssertionError(f"the Java driver has ended; it said:\n{self.said.read()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"], answer["message"])
        assert "failure" not in answer, f"{op}: {answer['failure']}"
        return answer["ok"]

    def close(self) -> None:
        """End of input is the driver's order to stop."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()
        self.said.close()

    def kill(self) -> None:
        """As if the machine of every client in it had lost its power."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.said.close()
